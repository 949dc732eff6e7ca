# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Passes over inputs: which batches, and one end for all processes."""

from __future__ import annotations

from concurrent import futures

import numpy as np
import pytest

from pax.programs import eval_batches
from praxis import base_input, py_utils
from tests.testing.coordination_store import Server, Store

NestedMap = py_utils.NestedMap
_DEADLINE_SECS = 60


class Rows(base_input.BaseInput):
  """Batches 1, 2, ... of one row."""

  num_batches: int = 3
  has_weights: bool = True

  def __post_init__(self):
    super().__post_init__()
    self._count = 0

  def get_next(self):
    if self._count == self.num_batches:
      raise StopIteration
    self._count += 1
    batch = NestedMap(x=np.float32([self._count]))
    if self.has_weights:
      batch.nested = NestedMap(eval_sample_weights=np.float32([1]))
    return batch

  def reset(self):
    super().reset()
    self._count = 0


def make(num_batches, **fields):
  return (
    Rows.config(batch_size=1, num_batches=num_batches, reset_for_eval=True)
    .set(**fields)
    .Instantiate()
  )


def passes(inputs, num_passes=1, **options):
  """Reads the inputs in processes that are threads; the batches of each."""
  server = Server(len(inputs))

  def read(index):
    end = eval_batches.CommonEnd(Store(server, index))
    result = []
    for _ in range(num_passes):
      polls = []
      batches = eval_batches.iterate_batches(
        inputs[index], polls.append, common_end=end, **options
      )
      result.append(list(batches))
      # The last poll is that of the attempt that finds the end.
      assert polls == list(range(len(result[-1]) + 1))
      inputs[index].reset()
    return result

  with futures.ThreadPoolExecutor(len(inputs)) as pool:
    reads = [pool.submit(read, index) for index in range(len(inputs))]
    return [read.result(_DEADLINE_SECS) for read in reads]


@pytest.mark.parametrize('counts', [(3, 3), (1, 4), (4, 1), (2, 5, 3), (0, 0)])
def test_all_processes_read_as_many_batches(counts):
  found = passes([make(count) for count in counts], num_passes=4)
  for count, of_process in zip(counts, found, strict=True):
    for batches in of_process:
      assert len(batches) == max(counts)
      x = [int(batch.x[0]) for batch in batches]
      weights = [float(b.nested.eval_sample_weights[0]) for b in batches]
      # Padding repeats the last batch.
      assert x == [min(i + 1, count) for i in range(max(counts))]
      assert weights == [1.0] * count + [0.0] * (max(counts) - count)


@pytest.mark.parametrize(
  ('fields', 'options'),
  [
    ({'num_batches': 0}, {}),
    ({'num_batches': 1, 'has_weights': False}, {}),
    ({'num_batches': 1}, {'pads': False}),
  ],
)
def test_a_process_that_cannot_pad(fields, options):
  server = Server(2)
  longer, shorter = (
    eval_batches.CommonEnd(Store(server, index)) for index in range(2)
  )
  for _ in eval_batches.iterate_batches(
    make(2, eval_loop_num_batches=2, reset_for_eval=False),
    lambda index: None,
    common_end=longer,
  ):
    pass
  with pytest.raises(ValueError, match="'input' end on process 0 before"):
    list(
      eval_batches.iterate_batches(
        make(**fields), lambda index: None, common_end=shorter, **options
      )
    )


def test_the_batches_are_those_of_the_table():
  """The four combinations of the README, over several passes."""
  every = [
    ({'reset_for_eval': True, 'eval_loop_num_batches': 2}, [3, 3, 3]),
    ({'reset_for_eval': True, 'eval_loop_num_batches': None}, [3, 3, 3]),
    ({'reset_for_eval': False, 'eval_loop_num_batches': 1}, [1, 1, 1, 0]),
    ({'reset_for_eval': False, 'eval_loop_num_batches': -1}, [3, 0]),
  ]
  for fields, expected in every:
    inp = make(3, **fields)
    for count in expected:
      batches = list(eval_batches.iterate_batches(inp, lambda index: None))
      assert len(batches) == count
      if count:
        eval_batches.check_num_batches(inp, count)
      else:
        with pytest.raises(ValueError, match='reset_for_eval=True'):
          eval_batches.check_num_batches(inp, count)
      if inp.reset_for_eval:
        inp.reset()


def test_an_empty_epoch_is_no_fault():
  eval_batches.check_num_batches(make(0), 0)
