# SPDX-License-Identifier: Apache-2.0
# bazel: deps=@pypi//array_record,@pypi//grain
"""Batches of Grain over ArrayRecord: hosts, worker processes, states."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pax.inputs import grain_input
from pax.inputs.records import text_records
from tests.testing import nightly

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


class ThirdsIterated(Shuffled):
  """An IterDataset of the numbers that 3 does not divide."""

  def __call__(self, host_index, num_hosts, seed):
    rows = super().__call__(host_index, num_hosts, seed)
    return rows.filter(lambda row: row['x'] % 3 > 0).to_iter_dataset()


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
  settings.setdefault('make_dataset', Shuffled(path))
  return grain_input.GrainInput.config(**settings).Instantiate()


def make_hosts(path, count: int, **kwargs) -> list[grain_input.GrainInput]:
  return [
    make(
      path,
      batch_size=8 // count,
      num_infeed_hosts=count,
      infeed_host_index=i,
      **kwargs,
    )
    for i in range(count)
  ]


def take(source, count: int) -> list[list[int]]:
  return [source.get_next_padded().x.tolist() for _ in range(count)]


def take_global(hosts, count: int) -> list[list[int]]:
  """Global batches of some hosts."""
  parts = zip(*(take(host, count) for host in hosts), strict=True)
  return [sum(batch, []) for batch in parts]


def test_global_batches_do_not_depend_on_hosts_and_their_changes(path):
  expected = take_global(make_hosts(path, 1), 16)
  epochs = np.reshape(expected, [-1])
  for epoch in (epochs[:COUNT], epochs[COUNT : 2 * COUNT]):
    assert sorted(epoch) == list(range(COUNT))
  assert list(epochs[:COUNT]) != list(epochs[COUNT : 2 * COUNT])
  for count in (2, 4, 8):
    assert take_global(make_hosts(path, count), 16) == expected
  batches, state = [], None
  for count in (2, 8, 1, 4):
    hosts = make_hosts(path, count)
    for host in hosts:
      if state is not None:
        host.set_state(state)
    batches += take_global(hosts, 4)
    states = [host.get_state() for host in hosts]
    assert states == [states[0]] * count
    state = json.loads(json.dumps(states[0]))
  assert batches == expected


def test_an_epoch_of_evaluation_has_each_example_once_and_padding(path):
  finite = make(path, is_training=False, batch_size=16)
  for _ in range(2):
    batches = [finite.get_next() for _ in range(3)]
    with pytest.raises(StopIteration):
      finite.get_next()
    finite.reset()
    weights = np.concatenate([b.eval_sample_weights for b in batches])
    numbers = np.concatenate([b.x for b in batches])
    assert weights.tolist() == [1] * COUNT + [0] * 8
    assert sorted(numbers[:COUNT]) == list(range(COUNT))
  hosts = make_hosts(path, 8, is_training=False)
  assert len(take_global(hosts, 5)) == 5
  for host in hosts:
    with pytest.raises(StopIteration):
      host.get_next()
  # Only the first of the hosts has examples in the last batch.
  pair = [
    make(
      path,
      is_training=False,
      batch_size=24,
      num_infeed_hosts=2,
      infeed_host_index=i,
    )
    for i in range(2)
  ]
  weights = [host.get_next().eval_sample_weights.sum() for host in pair]
  assert weights == [24, 16]


@pytest.mark.parametrize('num_workers', [0, *nightly.cases(1)])
def test_the_state_continues_with_any_number_of_workers(path, num_workers):
  source = make(path, num_workers=num_workers)
  take(source, 3)
  source.peek_padded()
  state = json.loads(json.dumps(source.get_state()))
  expected = take(source, 12)
  resumed = make(path, num_workers=1 - num_workers)
  resumed.set_state(state)
  assert take(resumed, 12) == expected


class Repeated(Shuffled):
  def __call__(self, host_index, num_hosts, seed):
    return super().__call__(host_index, num_hosts, seed).repeat()


def test_a_data_set_may_repeat_by_itself(path):
  endless = make(path, make_dataset=Repeated(path))
  expected = take(make(path), 12)
  assert take(endless, 12) == expected
  resumed = make(path, make_dataset=Repeated(path))
  resumed.set_state({'examples': 4 * 11})
  assert take(resumed, 1) == expected[11:]


def test_an_epoch_of_evaluation_ends(path):
  settings = {'is_training': False, 'reset_for_eval': True}
  for repeats in ({'repeat': True}, {'make_dataset': Repeated(path)}):
    with pytest.raises(ValueError, match='must end .* leave out repeat'):
      make(path, **settings, **repeats)


def test_a_state_of_other_data_is_refused(path):
  source = make(path)
  state = source.get_state()
  with pytest.raises(ValueError, match='seed was 0, is 3.*--accept_changed'):
    make(path, input_random_seed=3).set_state(state)
  with pytest.raises(ValueError, match='must be a MapDataset'):
    make(path, make_dataset=iterated).set_state({'examples': 8})


def iterated(host_index, num_hosts, seed):
  rows = grain.MapDataset.range(COUNT)[host_index::num_hosts]
  rows = rows.shuffle(seed=seed).map(lambda i: {'x': np.array(i)})
  return rows.filter(lambda row: row['x'] % 3 > 0).repeat().to_iter_dataset()


def test_an_iter_dataset_belongs_to_a_number_of_hosts(path):
  source = make(path, make_dataset=iterated)
  take(source, 3)
  state = json.loads(json.dumps(source.get_state()))
  expected = take(source, 12)
  resumed = make(path, make_dataset=iterated)
  resumed.set_state(state)
  assert take(resumed, 12) == expected
  pair = make_hosts(path, 2, make_dataset=iterated)
  with pytest.raises(ValueError, match='num_infeed_hosts.*must be 1.*got 2'):
    pair[0].set_state(state)


@pytest.mark.parametrize('num_workers', [0, 2])
def test_an_evaluation_reads_all_examples_of_an_iter_dataset(path, num_workers):
  finite = make(
    path,
    make_dataset=ThirdsIterated(path),
    is_training=False,
    batch_size=16,
    num_workers=num_workers,
  )
  found = []
  with pytest.raises(StopIteration):
    while True:
      batch = finite.get_next()
      assert batch.x.shape == batch.eval_sample_weights.shape == (16,)
      found += batch.x[batch.eval_sample_weights == 1].tolist()
  assert sorted(found) == [i for i in range(COUNT) if i % 3 > 0]


def filtered(host_index, num_hosts, seed):
  return grain.MapDataset.range(COUNT).filter(lambda i: i % 2 > 0)


def empty(host_index, num_hosts, seed):
  return grain.MapDataset.range(0)


def test_wrong_data_sets(path):
  with pytest.raises(ValueError, match=r'call to_iter_dataset\(\) in make'):
    make(path, make_dataset=filtered)
  with pytest.raises(ValueError, match='has no examples'):
    make(path, make_dataset=empty)


def rows(host_index, num_hosts, seed):
  del host_index, num_hosts
  dataset = grain.MapDataset.range(COUNT).shuffle(seed=seed)
  return dataset.map(lambda i: {'x': np.array(i)})


def test_functions_by_name(path):
  named = make(path, make_dataset=f'{__name__}:rows')
  assert take(named, 3) == take(make(path, make_dataset=rows), 3)
  for name in ('nowhere:rows', f'{__name__}:columns', 'rows'):
    with pytest.raises(ValueError, match=f"got '{name}'"):
      make(path, make_dataset=name)


def test_make_dataset_is_required():
  with pytest.raises(ValueError, match='make_dataset'):
    grain_input.GrainInput.config(batch_size=1).Instantiate()
