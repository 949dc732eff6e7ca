# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""What every input promises, shown on one that counts."""

from __future__ import annotations

import pickle
import types

import jax
import numpy as np
import pytest

from praxis import base_input, pax_fiddle, py_utils
from praxis.base_input import data_fingerprints

NestedMap = py_utils.NestedMap


class Count(base_input.BaseInput):
  """Batches 0, 1, 2 ... up to `size`."""

  size: int = 4

  def __post_init__(self):
    super().__post_init__()
    self._next = 0

  def get_next(self) -> NestedMap:
    if self._next == self.size:
      raise StopIteration
    self._next += 1
    return NestedMap(x=np.full((self.batch_size, 2), self._next - 1))

  def reset(self) -> None:
    self._next = 0


class ResumableCount(Count):
  def _get_state_internal(self):
    return {'next': self._next}

  def _set_state_internal(self, state):
    self._next = state['next']


def make(cls=ResumableCount, **kwargs):
  return cls.config(batch_size=2, **kwargs).Instantiate()


def values(source: base_input.BaseInput) -> list[int]:
  found = []
  while (batch := source.peek_padded()) is not None:
    assert source.get_next_padded() is batch
    found.append(int(batch.x[0, 0]))
  return found


def test_defaults_of_the_contract():
  source = make()
  assert (source.name, make(is_training=True).name) == ('input', 'train')
  assert (source.num_infeed_hosts, source.infeed_host_index) == (1, 0)
  assert source.eval_loop_num_batches == 1
  assert not source.reset_for_eval and not source.is_training


@pytest.mark.parametrize('name', ['c4/train', 'with space', 'a\n'])
def test_a_name_must_be_fit_for_directories(name):
  with pytest.raises(ValueError, match='name must match'):
    make(name=name)


@pytest.mark.parametrize('batches', [0, -2])
def test_eval_loop_num_batches_is_positive_or_all(batches):
  with pytest.raises(ValueError, match='eval_loop_num_batches'):
    make(eval_loop_num_batches=batches)
  assert make(eval_loop_num_batches=-1) and make(eval_loop_num_batches=None)


def test_a_batch_size_is_required():
  with pytest.raises(ValueError, match='batch_size of Count'):
    Count.config().Instantiate()

  class DatasetSized(Count):
    _VALIDATE_BATCH_SIZE_NOT_NONE = False

  assert DatasetSized.config().Instantiate().batch_size is None


def test_the_host_must_be_one_of_the_hosts():
  with pytest.raises(ValueError, match='infeed_host_index'):
    make(num_infeed_hosts=2, infeed_host_index=2)


def test_the_global_batch_counts_all_hosts():
  params = Count.config(batch_size=3, num_infeed_hosts=4)
  assert base_input.BaseInput.get_batch_size(params) == 3
  assert base_input.BaseInput.get_global_batch_size(params) == 12
  params.num_infeed_hosts = 0
  assert base_input.BaseInput.get_global_batch_size(params) == 3


def test_peek_shows_the_next_batch_and_takes_none():
  assert values(make()) == [0, 1, 2, 3]
  assert values(make(Count)) == [0, 1, 2, 3]


def test_padding_adds_rows_of_zeros():
  source = make(batch_padding_size=3)
  source.get_next()
  batch = source.get_next_padded()
  np.testing.assert_array_equal(batch.x[:, 0], [1, 1, 0, 0, 0])


def test_a_batch_must_be_a_nested_map():
  class Dicts(base_input.BaseInput):
    def get_next(self):
      return {'x': np.zeros(2)}

  message = 'get_next of Dicts must return a NestedMap of arrays, got a dict'
  with pytest.raises(TypeError, match=message):
    Dicts.config(name='dicts', batch_size=2).Instantiate().peek_padded()


def test_state_after_a_peek_is_the_state_before_it():
  source = make()
  source.get_next()
  state = source.get_state()
  source.peek_padded()
  assert source.get_state() == state
  other = make()
  other.set_state(source.get_state())
  assert values(other) == values(source) == [1, 2, 3]


def test_a_peek_without_state_cannot_be_saved():
  source = make(Count)
  source.peek_padded()
  with pytest.raises(ValueError, match='peeked'):
    source.get_state()
  source.get_next_padded()
  with pytest.raises(NotImplementedError, match='not resumable'):
    source.get_state()


def test_set_state_forgets_the_peeked_batch():
  source = make()
  start = source.get_state()
  source.get_next()
  source.peek_padded()
  source.set_state(start)
  assert values(source) == [0, 1, 2, 3]


def test_save_and_restore_go_through_a_file(tmp_path):
  source = make()
  source.get_next()
  source.save(tmp_path / 'state')
  other = make()
  other.restore(tmp_path / 'state')
  assert values(other) == [1, 2, 3]


@pytest.mark.parametrize('peek', [False, True])
def test_a_pickled_input_goes_on_where_it_was(peek):
  source = make()
  source.get_next()
  if peek:
    source.peek_padded()
  assert values(pickle.loads(pickle.dumps(source))) == [1, 2, 3]


def test_batches_are_split_over_devices_for_pmap():
  devices = jax.local_device_count()
  source = make()
  batch = NestedMap(x=np.arange(2 * devices * 3).reshape(2 * devices, 3))
  split = source.reshard_for_pmap(batch)
  assert split.x.shape == (devices, 2, 3)
  np.testing.assert_array_equal(split.x[1], batch.x[2:4])
  with pytest.raises(ValueError, match='not divisible'):
    source.reshard_for_pmap(NestedMap(x=np.zeros(2 * devices + 1)))


def test_batches_become_global_arrays_for_spmd():
  mesh = jax.make_mesh((4, 2), ('data', 'mdl'))
  spec = jax.sharding.PartitionSpec('data')
  batch = NestedMap(x=np.arange(24).reshape(8, 3))
  placed = make().reshard_for_spmd(batch, mesh, NestedMap(x=spec))
  assert placed.x.sharding == jax.sharding.NamedSharding(mesh, spec)
  np.testing.assert_array_equal(placed.x, batch.x)


def multi(**kwargs):
  return base_input.MultiInput.config(
    input_to_params={
      'a': ResumableCount.config(batch_size=4),
      'b': ResumableCount.config(batch_size=6, size=9),
    },
    **kwargs,
  )


def test_multi_input_reads_side_by_side():
  source = multi().Instantiate()
  batch = source.get_next()
  # The first dimension is the greatest common divisor of 4 and 6.
  assert (batch.a.x.shape, batch.b.x.shape) == ((2, 2, 2), (2, 3, 2))
  assert base_input.MultiInput.get_batch_size(multi()) == 2
  state = source.get_state()
  assert source.get_next().b.x[0, 0, 0] == 1
  source.set_state(state)
  assert source.get_next().b.x[0, 0, 0] == 1
  source.reset()
  assert source.get_child('b').get_state() == {'next': 0}


def test_multi_input_refuses_the_state_of_other_names():
  state, _ = data_fingerprints.detach(multi().Instantiate().get_state())
  renamed = multi().Instantiate()
  renamed.set_state({'a': state['a'], 'b': state['b'], 'unused': {}})
  with pytest.raises(ValueError, match=r"\['a', 'c'\], got \['a', 'b'\]"):
    renamed.set_state({'a': state['a'], 'c': state['b']})


def test_multi_input_sets_the_fields_of_its_inputs():
  source = multi(
    name='both',
    num_infeed_hosts=3,
    infeed_host_index=2,
    is_training=True,
    eval_loop_num_batches=7,
  ).Instantiate()
  child = source.get_child('a')
  assert (child.num_infeed_hosts, child.infeed_host_index) == (3, 2)
  assert child.is_training and not child.reset_for_eval
  assert (child.name, child.eval_loop_num_batches) == ('both_a', 7)


def test_multi_input_of_one_input_reads_epochs():
  source = base_input.MultiInput.config(
    input_to_params={'a': ResumableCount.config(batch_size=4)},
    reset_for_eval=True,
  ).Instantiate()
  for _ in range(2):
    epoch = []
    while (batch := source.peek_padded()) is not None:
      epoch.append(source.get_next_padded().a.x[0, 0, 0])
      assert batch.a.x.shape == (4, 1, 2)
    assert epoch == [0, 1, 2, 3]
    source.reset()


def test_multi_input_refuses_what_it_cannot_mean():
  with pytest.raises(ValueError, match='default_input'):
    multi(default_input='c').Instantiate()
  with pytest.raises(ValueError, match='batch_size'):
    multi(batch_size=2).Instantiate()
  with pytest.raises(ValueError, match='reset_for_eval with one input only'):
    multi(reset_for_eval=True).Instantiate()
  empty = base_input.MultiInput.config()
  for get in (empty.Instantiate, lambda: empty.cls.get_batch_size(empty)):
    with pytest.raises(ValueError, match='at least one input, got None'):
      get()


def test_specs_come_from_the_first_batch():
  provider = base_input.DatasetInputSpecsProvider.config(
    input_p=Count.config(batch_size=5)
  ).Instantiate()
  assert isinstance(provider.input_p, pax_fiddle.Config)
  spec = provider.get_input_specs().x
  assert (spec.shape, spec.dtype) == ((5, 2), np.int64)


def test_json_text_of_states():
  state = {'next': 1, 'iterator': b'\x00\xff', 'children': [b'a', {'b': b''}]}
  text = base_input.state_to_json(state)
  assert base_input.state_from_json(text) == state
  assert (
    base_input.state_from_json(base_input.state_to_json(b'\x80')) == b'\x80'
  )
  with pytest.raises(TypeError, match='JSON or bytes'):
    base_input.state_to_json({'x': object()})


class _Shape(tuple[int | None, ...]):
  """Stands for tf.TensorShape."""

  def is_fully_defined(self) -> bool:
    return None not in self


@pytest.mark.parametrize('batch_dim', [7, None])
@pytest.mark.parametrize('padding', [0, 3])
def test_specs_come_from_the_dataset(batch_dim, padding):
  tensor = types.SimpleNamespace(
    shape=_Shape((batch_dim, 2)),
    dtype=types.SimpleNamespace(as_numpy_dtype=np.int8),
  )

  class WithDataset(Count):
    def __post_init__(self):
      super().__post_init__()
      self.dataset = types.SimpleNamespace(element_spec={'x': tensor})

  params = WithDataset.config(batch_size=5, batch_padding_size=padding)
  assert 'dataset' not in params.__arguments__
  spec = (
    base_input.DatasetInputSpecsProvider.config(input_p=params)
    .Instantiate()
    .get_input_specs()['x']
  )
  if batch_dim:
    assert (spec.shape, spec.dtype) == ((7 + padding, 2), np.int8)
  else:
    assert (spec.shape, spec.dtype) == ((5 + padding, 2), np.int64)


class _Filed(base_input.BaseInput):
  """Counts; its state is a file."""

  next_number = 0

  def get_next(self):
    self.next_number += 1
    return NestedMap(x=np.array([self.next_number - 1]))

  def save(self, checkpoint_path):
    checkpoint_path.write_text(str(self.next_number))

  def restore(self, checkpoint_path):
    self.next_number = int(checkpoint_path.read_text())


def test_inputs_that_write_their_state():
  params = _Filed.config(batch_size=1)
  for cls in (
    params,
    base_input.MultiInput.config(input_to_params={'a': params}),
  ):
    inp = cls.Instantiate()
    inp.get_next_padded()
    state = inp.get_state()
    inp.get_next_padded()
    expected = inp.get_next_padded()
    inp.set_state(base_input.advance_state(state, 1))
    jax.tree.map(np.testing.assert_array_equal, inp.get_next_padded(), expected)
    # As upstream: no state before the peeked batch.
    inp.peek_padded()
    inp.get_state()
  with pytest.raises(ValueError, match='relative file names'):
    inp.get_child('a').set_state({'__files__': {'../a': b''}})


@pytest.mark.parametrize('dtype', ['bfloat16', 'float8_e4m3fn', 'int64', 'S2'])
def test_the_peeked_batch_of_a_file_state_keeps_its_dtype(dtype):
  class WithDtype(_Filed):
    def get_next(self):
      return super().get_next().Transform(lambda x: x.astype(dtype))

  inp = WithDtype.config(batch_size=1).Instantiate()
  inp.get_next_padded()
  expected = inp.peek_padded().x
  text = base_input.state_to_json(inp.get_state())
  restarted = WithDtype.config(batch_size=1).Instantiate()
  restarted.set_state(base_input.state_from_json(text))
  found = restarted.get_next_padded().x
  assert found.dtype == expected.dtype
  np.testing.assert_array_equal(found, expected)
  assert restarted.get_next_padded().x.astype(int) == [2]
