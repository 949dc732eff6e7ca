# SPDX-License-Identifier: Apache-2.0
# bazel: deps=@pypi//array_record,@pypi//grain
"""Batches of Grain over ArrayRecord: hosts, worker processes, states."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pax.inputs import grain_input, text_records

grain = pytest.importorskip('grain')
module = pytest.importorskip('array_record.python.array_record_module')

COUNT = 40


class NumberSource:
  """Numbers in an ArrayRecord file, for Grain."""

  def __init__(self, path: str):
    self.records = text_records.ArrayRecords(path)

  def __len__(self) -> int:
    return len(self.records)

  def __getitem__(self, index: int) -> dict[str, np.ndarray]:
    return {'x': np.array(int(self.records.read(index)))}


class Shuffled:
  """make_dataset; a class, so that worker processes can import it."""

  def __init__(self, path: str):
    self.path = path

  def __call__(self, host_index, num_hosts, seed):
    del host_index, num_hosts
    return grain.MapDataset.source(NumberSource(self.path)).shuffle(seed=seed)


@pytest.fixture(scope='module')
def path(tmp_path_factory) -> str:
  path = str(tmp_path_factory.mktemp('records') / 'x.array_record')
  writer = module.ArrayRecordWriter(path, 'group_size:1')
  for i in range(COUNT):
    writer.write(str(i).encode())
  writer.close()
  return path


def make(path, **kwargs) -> grain_input.GrainInput:
  settings = {'batch_size': 4, 'is_training': True, **kwargs}
  return grain_input.GrainInput.config(
    make_dataset=Shuffled(path), **settings
  ).Instantiate()


def take(source, count: int) -> list[list[int]]:
  return [source.get_next_padded().x.tolist() for _ in range(count)]


def test_epochs_are_divided_among_hosts(path):
  hosts = [
    make(path, num_infeed_hosts=2, infeed_host_index=i) for i in range(2)
  ]
  rows = [sum(take(host, 5), []) for host in hosts]
  assert sorted(rows[0] + rows[1]) == list(range(COUNT))
  finite = make(path, is_training=False)
  assert sorted(sum(take(finite, 10), [])) == list(range(COUNT))
  with pytest.raises(StopIteration):
    finite.get_next()
  finite.reset()
  assert len(take(finite, 10)) == 10


@pytest.mark.parametrize('num_workers', [0, 1])
def test_the_state_continues_also_with_worker_processes(path, num_workers):
  source = make(path, num_workers=num_workers)
  take(source, 3)
  source.peek_padded()
  state = json.loads(json.dumps(source.get_state()))
  expected = take(source, 12)
  resumed = make(path, num_workers=num_workers)
  resumed.set_state(state)
  assert take(resumed, 12) == expected


def test_a_state_of_other_hosts_is_refused(path):
  state = make(path).get_state()
  other = make(path, num_infeed_hosts=2)
  with pytest.raises(ValueError, match='num_infeed_hosts.*must be 1.*got 2'):
    other.set_state(state)


def rows(host_index, num_hosts, seed):
  del host_index, num_hosts
  return grain.MapDataset.range(COUNT).shuffle(seed=seed)


def test_functions_by_name():
  config = grain_input.GrainInput.config(batch_size=2, is_training=True)
  named = config.clone().set(make_dataset=f'{__name__}:rows').Instantiate()
  direct = config.clone().set(make_dataset=rows).Instantiate()
  assert next(named._iterator).tolist() == next(direct._iterator).tolist()
  for name in ('nowhere:rows', f'{__name__}:columns', 'rows'):
    with pytest.raises(ValueError, match=f"got '{name}'"):
      config.clone().set(make_dataset=name).Instantiate()


def test_make_dataset_is_required():
  with pytest.raises(ValueError, match='make_dataset'):
    grain_input.GrainInput.config(batch_size=1).Instantiate()
