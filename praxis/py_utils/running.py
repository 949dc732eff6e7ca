# SPDX-License-Identifier: Apache-2.0
"""Time, logs and threads around what runs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_log = logging.getLogger(__name__)

# What SeqIO says of where an example comes from.
PROVENANCE_PREFIX = '_seqio_provenance'
INDEX_WITHIN_SHARD_KEY = f'{PROVENANCE_PREFIX}/index_within_shard'
SHARD_INDEX_KEY = f'{PROVENANCE_PREFIX}/shard_index'
NUM_SHARDS_KEY = f'{PROVENANCE_PREFIX}/num_shards'
ENUM_PROVENANCE_KEYS = (INDEX_WITHIN_SHARD_KEY, SHARD_INDEX_KEY, NUM_SHARDS_KEY)


class ThreadLocalStack(threading.local):
  """A list, `stack`, of which each thread has its own."""

  def __init__(self):
    super().__init__()
    self.stack: list[Any] = []


@dataclasses.dataclass
class RunningPeriod:
  """A time from `start` to `end`, or to now."""

  start: float
  end: float | None = None
  # What `elapsed` is at least, so that rates stay finite.
  min_elapsed: float = 0

  @property
  def elapsed(self) -> float:
    """Returns seconds."""
    end = time.time() if self.end is None else self.end
    return max(end - self.start, self.min_elapsed)


@contextlib.contextmanager
def timeit(min_elapsed: float = 1e-6) -> Iterator[RunningPeriod]:
  """Measures what happens within a `with`; read `elapsed` of its value."""
  period = RunningPeriod(start=time.time(), min_elapsed=min_elapsed)
  try:
    yield period
  finally:
    period.end = time.time()


def benchmark(
  prefix: str = '', first_n: int | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
  """A decorator that logs how long calls take, the first `first_n` or all."""

  def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
    calls = 0

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
      nonlocal calls
      calls += 1
      if first_n is not None and calls > first_n:
        return fn(*args, **kwargs)
      with timeit() as period:
        result = fn(*args, **kwargs)
      _log.info('%s<%s> took %.2f s', prefix, fn.__name__, period.elapsed)
      return result

    return wrapped

  return decorate


@contextlib.contextmanager
def logging_verbosity_level(level: str | int) -> Iterator[None]:
  """Sets the level of the root logger within a `with`: 'INFO', 'FATAL'."""
  root = logging.getLogger()
  before = root.level
  root.setLevel(level)
  try:
    yield
  finally:
    root.setLevel(before)


def sharded_file_pattern_to_glob(file_pattern: str) -> str:
  """Returns `path@8` as `path-?????-of-00008`; `path@*` fits any number."""
  if ',' in file_pattern:
    raise ValueError(
      f'sharded_file_pattern_to_glob takes one pattern, got {file_pattern!r}; '
      'split it at the commas'
    )
  path, at, shards = file_pattern.partition('@')
  if not at:
    return path
  return f'{path}-?????-of-' + ('*' if shards == '*' else f'{int(shards):05}')


def get_enumeration_id(
  example: dict[str, Any], pop: bool = False
) -> str | None:
  """Returns an id of a SeqIO example in its data set, None if it has none.

  With `pop`, what it is made of is removed from the example.
  """
  if not all(key in example for key in ENUM_PROVENANCE_KEYS):
    return None
  look_up = example.pop if pop else example.get
  return '/'.join(
    f'{key}={int(np.asarray(look_up(key)).item())}'
    for key in ENUM_PROVENANCE_KEYS
  )
