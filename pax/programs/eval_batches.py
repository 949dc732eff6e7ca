# SPDX-License-Identifier: Apache-2.0
"""The batches of one pass over an eval, decode or inference input.

A batch is a collective of all processes, so that all need the same number of
batches. A process whose data end before those of the others continues with
batches of weight 0. The processes agree on the end through JAX's coordination
service.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from pax import coordination_service
from pax.steps import Batch
from praxis import base_input

# Calls a function that reads a batch, and returns its result.
ReadBatch = Callable[[Callable[[], Any]], Any]

# Fields of weights; 0 excludes a row or a token from losses and metrics.
_WEIGHTS = ('eval_sample_weights', 'weights', 'weight')
_POLL_SECS = 0.02


class CommonEnd:
  """Agreement of the processes on the number of batches of a pass.

  The processes make passes in the same order.
  """

  def __init__(self, store: coordination_service.KeyValueStore | None = None):
    """Does not connect.

    Args:
      store: The store of the processes; None is that of `jax.distributed`.
    """
    self._store = store
    self._pass_index = 0
    self._num_batches = 0

  def begin_pass(self) -> None:
    """Call it before the first batch of a pass."""
    if self._store is None and jax.process_count() > 1:
      self._store = coordination_service.CoordinationStore('eval_batches')
    self._num_batches = 0
    self._pass_index += 1
    if self._store is not None and self._store.process == 0:
      # A pass begins when all processes have begun the one before, and left the
      # one before that.
      self._store.delete(str(self._pass_index - 2))

  def add_batch(self) -> None:
    """Counts a batch of this process."""
    self._num_batches += 1
    self._publish(has_ended=False)

  def is_reached(self) -> bool:
    """Waits, after the data of this process have ended, for the others.

    Returns:
      Whether no process has more batches. Otherwise this process is to pass a
      batch of padding, which counts as read.
    """
    if self._store is None:
      return True
    self._publish(has_ended=True)
    while True:
      states = [
        text.split() for text in self._store.read(str(self._pass_index))
      ]
      if any(int(count) > self._num_batches for count, _ in states):
        self._num_batches += 1
        self._publish(has_ended=True)
        return False
      if [end for _, end in states] == ['end'] * self._store.num_processes:
        return True
      time.sleep(_POLL_SECS)

  def _publish(self, has_ended: bool) -> None:
    if self._store is not None:
      key = f'{self._pass_index}/{self._store.process}'
      end = 'end' if has_ended else 'more'
      self._store.replace(key, f'{self._num_batches} {end}')


def iterate_batches(
  inp: base_input.BaseInput,
  before_batch: Callable[[int], None],
  read_batch: ReadBatch = lambda read: read(),
  common_end: CommonEnd | None = None,
  *,
  pads: bool = True,
) -> Iterator[Batch]:
  """Yields the host batches of one pass over an input.

  With `reset_for_eval` these are the full epoch, otherwise the next
  `eval_loop_num_batches`, or all that remain if that is None or -1.

  Args:
    inp: The input.
    before_batch: Called with the index of each batch before it is read.
    read_batch: Calls the function that reads a batch, and may end the wait.
    common_end: The end of the pass on all processes; None is that of this
      process.
    pads: Whether this process may pass batches of weight 0 at its end.

  Raises:
    ValueError: The data of this process end before those of another one, and
      cannot be padded.
  """
  common_end = common_end or CommonEnd()
  common_end.begin_pass()
  num_batches = inp.eval_loop_num_batches
  indices: Iterable[int] = itertools.count()
  if num_batches and num_batches > 0 and not inp.reset_for_eval:
    indices = range(num_batches)
  has_ended = False
  last_batch: Batch | None = None

  def read() -> Batch | None:
    nonlocal has_ended
    if not has_ended:
      try:
        batch = inp.get_next_padded()
        common_end.add_batch()
        return batch
      except base_input.end_of_data_errors():
        has_ended = True
    if common_end.is_reached():
      return None
    return _padding(inp.name, last_batch if pads else None)

  for index in indices:
    before_batch(index)
    last_batch = read_batch(read)
    if last_batch is None:
      return
    yield last_batch


def check_num_batches(inp: base_input.BaseInput, num_batches: int) -> None:
  """Checks that an evaluation has read the batches that its input promises.

  Args:
    inp: The input.
    num_batches: The number of batches that were read.

  Raises:
    ValueError: The input has ended although it is not reset for each
      evaluation.
  """
  if inp.reset_for_eval:
    return
  expected = inp.eval_loop_num_batches
  if expected is None or expected < 0:
    expected = 1
  if num_batches < expected:
    raise ValueError(
      f'eval input {inp.name!r} ended after {num_batches} of {expected}'
      ' batches; with reset_for_eval=False evaluations continue in the data,'
      ' which must repeat: set repeat=True, or reset_for_eval=True to read one'
      ' epoch in each evaluation'
    )


def _padding(name: str, batch: Batch | None) -> Batch:
  """Returns a batch with its weights set to 0."""
  leaves, treedef = jax.tree_util.tree_flatten_with_path(batch)
  is_weight = [str(getattr(p[-1], 'key', '')) in _WEIGHTS for p, _ in leaves]
  if not any(is_weight):
    raise ValueError(
      f'the data of input {name!r} end on process {jax.process_index()} before'
      ' those of other processes, and no batch has'
      f' {" or ".join(_WEIGHTS)} to mark padding; shard the data so that each'
      ' of the num_infeed_hosts has the same number of batches'
    )
  return jax.tree.unflatten(
    treedef,
    [
      np.zeros_like(x) if is_zero else x
      for (_, x), is_zero in zip(leaves, is_weight, strict=True)
    ],
  )
