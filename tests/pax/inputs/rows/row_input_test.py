# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Corrupt records: an error with their name, or padding up to a limit."""

from __future__ import annotations

import numpy as np
import pytest

from pax.inputs import prefetch
from pax.inputs.records import record_sources
from pax.inputs.rows import row_input

NestedMap = row_input.NestedMap
CORRUPT = (2, 7)


class Rows(row_input.RowSource):
  """Ten rows, of which two are corrupt."""

  def __len__(self) -> int:
    return 10

  def read(self, index: int) -> NestedMap:
    if index in CORRUPT:
      raise record_sources.UnreadableRecordError(f'{self.where(index)}: broken')
    return NestedMap(x=np.full(3, index))

  def where(self, index: int) -> str:
    return f'record {index} of numbers'

  def padding(self) -> NestedMap:
    return NestedMap(x=np.full(3, -1))


class RowsInput(row_input.RowInput):
  @property
  def sources(self):
    return [Rows()]


def make(**kwargs) -> RowsInput:
  return RowsInput.config(batch_size=4, **kwargs).Instantiate()


def test_corrupt_records_become_padding_up_to_the_limit():
  source = make(max_corrupt_records=2)
  batches = [source.get_next() for _ in range(3)]
  x = np.concatenate([batch.x[:, 0] for batch in batches])
  assert x.tolist() == [0, 1, -1, 3, 4, 5, 6, -1, 8, 9, -1, -1]
  weights = np.concatenate([batch.eval_sample_weights for batch in batches])
  np.testing.assert_array_equal(weights, x >= 0)
  assert source.num_corrupt_records == 2


@pytest.mark.parametrize(('limit', 'record'), [(0, 2), (1, 7)])
def test_one_more_is_an_error_with_its_name(limit, record):
  source = make(max_corrupt_records=limit)
  with pytest.raises(
    ValueError, match=f'record {record} of numbers.*may replace {limit}: repair'
  ):
    for _ in range(2):
      source.get_next()


def test_the_error_reaches_the_training_loop():
  with prefetch.Prefetcher(make()) as batches:
    for _ in range(2):
      with pytest.raises(ValueError, match='record 2 of numbers: broken'):
        batches.get_next()


@pytest.mark.parametrize('num_hosts', [1, 2])
def test_an_evaluation_of_some_batches_has_the_same_rows_each_time(num_hosts):
  hosts = [
    make(
      max_batches=1,
      max_corrupt_records=9,
      is_training=False,
      input_random_seed=3,
      num_infeed_hosts=num_hosts,
      infeed_host_index=i,
    )
    for i in range(num_hosts)
  ]

  def evaluate():
    rows = []
    for host in hosts:
      host.reset()
      rows += host.get_next().x[:, 0].tolist()
      with pytest.raises(StopIteration):
        host.get_next()
    return rows

  drawn = evaluate()
  assert len(drawn) == 4 * num_hosts
  kept = [row for row in drawn if row >= 0]
  assert len({*kept}) == len(kept)
  # They are not the first rows of the files.
  assert kept != sorted(kept)
  assert evaluate() == drawn


def test_more_batches_than_there_are_are_all_rows_in_order():
  source = make(max_batches=3, max_corrupt_records=2, is_training=False)
  x = np.concatenate([source.get_next().x[:, 0] for _ in range(3)])
  assert x.tolist() == [0, 1, -1, 3, 4, 5, 6, -1, 8, 9, -1, -1]


def test_rows_that_repeat_have_no_number_of_batches():
  with pytest.raises(ValueError, match='must be None where rows repeat, got 2'):
    make(max_batches=2, is_training=True)
