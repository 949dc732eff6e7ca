# SPDX-License-Identifier: Apache-2.0
"""Reads ahead in a thread, and tells what was read from what was used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from praxis import base_input, py_utils

NestedMap = py_utils.NestedMap

_POLL_SECONDS = 0.1


class Prefetcher:
  """An input that is read by a thread, a few batches ahead.

  Each batch carries the state of the input behind it, so that `get_state` is
  the state behind the batch handed out last, however far the thread has read.
  """

  def __init__(
    self,
    source: base_input.BaseInput,
    depth: int = 2,
    transform: Callable[[NestedMap], Any] | None = None,
  ):
    """Starts to read.

    Args:
      source: the input; leave it alone until `close`.
      depth: how many batches may wait.
      transform: done to each batch in the thread, such as its way to devices.
    """
    if depth < 1:
      raise ValueError(f'depth must be at least 1, got {depth}')
    self._source = source
    self._depth = depth
    self._transform = transform or (lambda batch: batch)
    self._state = state_of(source)
    self._peeked: tuple[Any, base_input.State | None] | None = None
    self._start()

  def get_next(self) -> Any:
    """The next batch, transformed.

    Raises:
      StopIteration: at the end of the data, and from then on.
      Exception: what the thread met.
    """
    batch, self._state = self._peeked or self._take()
    self._peeked = None
    return batch

  # As inputs call it; what was padded is padded already.
  get_next_padded = get_next

  def peek(self) -> Any | None:
    """What `get_next` will return, or None at the end of the data."""
    if self._peeked is None:
      try:
        self._peeked = self._take()
      except StopIteration:
        return None
    return self._peeked[0]

  peek_padded = peek

  def get_state(self) -> base_input.State:
    """The state of the input behind the batch that was handed out last."""
    if self._state is None:
      return self._source.get_state()  # Raises: it has none.
    return self._state

  def set_state(self, state: base_input.State) -> None:
    """Goes to `state` and reads on from there."""
    self.close()
    self._source.set_state(state)
    self._state = state
    self._start()

  def reset(self) -> None:
    """Goes back to the first batch."""
    self.close()
    self._source.reset()
    self._state = state_of(self._source)
    self._start()

  def close(self) -> None:
    """Ends the thread; what was read ahead is dropped."""
    self._stopped.set()
    self._thread.join()
    self._peeked = None

  def __enter__(self) -> Prefetcher:
    return self

  def __exit__(self, *unused: Any) -> None:
    self.close()

  def _start(self) -> None:
    self._stopped = threading.Event()
    self._queue: queue.Queue[Any] = queue.Queue(self._depth)
    self._end: BaseException | None = None
    self._thread = threading.Thread(
      target=self._read, name=f'prefetch {self._source.name}', daemon=True
    )
    self._thread.start()

  def _take(self) -> tuple[Any, base_input.State | None]:
    if self._end is None:
      item = self._queue.get()
      if not isinstance(item, BaseException):
        return item
      self._end = item
    raise self._end

  def _read(self) -> None:
    """Runs in the thread."""
    try:
      while not self._stopped.is_set():
        batch = self._source.get_next_padded()
        self._put((self._transform(batch), state_of(self._source)))
    except BaseException as e:  # Whatever it is, the reader must not wait.
      self._put(e)

  def _put(self, item: Any) -> None:
    while not self._stopped.is_set():
      try:
        return self._queue.put(item, timeout=_POLL_SECONDS)
      except queue.Full:
        continue


def state_of(
  source: base_input.BaseInput | Prefetcher,
) -> base_input.State | None:
  """The state of an input, None if it keeps none."""
  try:
    return source.get_state()
  except NotImplementedError:
    return None
