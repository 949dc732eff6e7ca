# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Each record once per epoch, in an order that a state restores."""

from __future__ import annotations

import json

import pytest

from pax.files import tf_records
from pax.inputs.records import shuffled_records

SIZES = (3, 0, 5, 2)


@pytest.fixture
def paths(tmp_path):
  """Files of records that tell their file and place; one is empty."""
  found = []
  for i, size in enumerate(SIZES):
    path = tmp_path / f'part-{i:05}-of-{len(SIZES):05}'
    with open(path, 'wb') as file:
      tf_records.write(file, [b'%d.%d' % (i, j) for j in range(size)])
    found.append(str(path))
  return found


ALL = [b'%d.%d' % (i, j) for i, n in enumerate(SIZES) for j in range(n)]


def take(source, count):
  return [source.take() for _ in range(count)]


@pytest.mark.parametrize('window', [1, 4, 100])
def test_each_epoch_has_every_record_in_another_order(paths, window):
  source = shuffled_records.ShuffledRecords(paths, window=window, seed=1)
  first, second = take(source, len(ALL)), take(source, len(ALL))
  assert sorted(first) == sorted(second) == ALL
  assert first != second
  again = shuffled_records.ShuffledRecords(paths, window=window, seed=1)
  assert take(again, len(ALL)) == first
  other = shuffled_records.ShuffledRecords(paths, window=window, seed=2)
  assert take(other, len(ALL)) != first


def test_a_window_holds_neighbors_only(paths):
  source = shuffled_records.ShuffledRecords(paths, window=1, seed=0)
  files = [record[:1] for record in take(source, len(ALL))]
  # One file after the other, each from its beginning.
  assert sum(a != b for a, b in zip(files, files[1:], strict=False)) == 2
  wide = shuffled_records.ShuffledRecords(paths, window=100, seed=0)
  files = [record[:1] for record in take(wide, len(ALL))]
  assert sum(a != b for a, b in zip(files, files[1:], strict=False)) > 2


def test_goes_on_from_any_state(paths):
  source = shuffled_records.ShuffledRecords(paths, window=4, seed=3)
  for _ in range(2 * len(ALL) + 1):
    state = json.loads(json.dumps(source.state))
    wanted = take(source, 5)
    other = shuffled_records.ShuffledRecords(paths, window=4, seed=3)
    other.state = state
    assert take(other, 5) == wanted
    source.state = state
    source.take()


def test_patterns(paths, tmp_path):
  every = tuple(paths)
  assert shuffled_records.expand(f'{tmp_path}/part@4') == every
  assert shuffled_records.expand(f'{tmp_path}/part@*') == every
  assert shuffled_records.expand(f'{paths[1]},{paths[0]}') == every[:2]
  assert shuffled_records.expand([str(tmp_path)]) == every
  with pytest.raises(ValueError, match='part-.*-of-00005'):
    shuffled_records.expand(f'{tmp_path}/part@5')


def test_what_cannot_be(paths):
  with pytest.raises(ValueError, match='window must be at least 1, got 0'):
    shuffled_records.ShuffledRecords(paths, window=0, seed=0)
  empty = shuffled_records.ShuffledRecords(paths[1:2], window=1, seed=0)
  with pytest.raises(ValueError, match='must have records'):
    empty.take()
