# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Rows of blocks: each record once, resumable, read incrementally."""

from __future__ import annotations

import json

import pytest

from pax.files import tf_records
from pax.inputs.records import block_reader, shuffled_records

_COUNT = 10


@pytest.fixture
def path(tmp_path):
  path = tmp_path / 'records'
  with open(path, 'wb') as file:
    tf_records.write(file, [b'%d' % i for i in range(_COUNT)])
  return str(path)


def make(path, size=5, log=None):
  """Pairs of records, each with a random number."""

  def read(record, random):
    if log is not None:
      log.append(record)
    return int(record), random.integers(1000)

  def rows_of(examples, random):
    order = random.permutation(len(examples))
    mixed = [examples[i] for i in order]
    return [mixed[i : i + 2] for i in range(0, len(mixed), 2)]

  source = shuffled_records.ShuffledRecords([path], window=4, seed=0)
  return block_reader.BlockReader(source, read, rows_of, size=size, seeds=[7])


def test_every_record_is_in_one_row(path):
  # Two blocks of three rows are an epoch.
  rows = make(path).take(6)
  assert sorted(i for row in rows for i, _ in row) == list(range(_COUNT))
  assert [len(row) for row in rows] == [2, 2, 1] * 2


def test_batches_run_over_the_ends_of_blocks(path):
  source, whole = make(path), make(path).take(20)
  assert sum((source.take(n) for n in (2, 5, 1, 4, 8)), []) == whole


@pytest.mark.parametrize('count', [1, 2, 3, 4])
def test_goes_on_from_any_state(path, count):
  source = make(path)
  for _ in range(9):
    state = json.loads(json.dumps(source.state))
    wanted = source.take(4)
    other = make(path)
    other.state = state
    assert other.take(4) == wanted
    source.state = state
    source.take(count)


def test_the_next_block_is_read_in_parts(path):
  log = []
  source = make(path, size=8, log=log)
  counts = []
  for _ in range(8):
    source.take(1)
    counts.append(len(log))
  # Four rows of eight records: the first block at once, then two with a row.
  assert counts == [10, 12, 14, 16, 18, 20, 22, 24]
