# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: data=//tests/golden:all_files
"""Directories of checkpoints, checkpointers and handlers of paxml."""

from __future__ import annotations

import datetime
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pax import train_states
from paxml import checkpoint_managers, checkpoint_metadata, checkpoints
from praxis import base_input, py_utils
from praxis.pytypes import NestedMap
from tests.testing import manager_options

# The files and errors with the original paxml; rerun
# tests/compare/upstream/checkpoints_test.py after a change of the cases.
OPTION_RESULTS = json.loads(
  pathlib.Path('tests/golden/checkpoint_manager_options.json').read_text()
)
# Where Pax differs, and the reason.
OPTION_DIFFERENCES = {
  # A forced older step does not expire others.
  'forced_older_step_max_to_keep': {
    'saved': [5, 6, 3],
    'names': [f'checkpoint_0000000{step}' for step in (3, 5, 6)],
  },
  # No metrics are saved: paxml keeps all, or deletes all but the newest.
  'best_fn': {'error': 'NotImplementedError'},
  'best_fn_without_metrics': {'error': 'NotImplementedError'},
  # paxml saves in spite of it.
  'read_only': {'saved': [1], 'names': ['checkpoint_00000001']},
  # paxml deletes every checkpoint as soon as it is saved.
  'max_to_keep_0': {'error': 'ValueError'},
}
CheckpointType = checkpoints.CheckpointType
Options = checkpoint_managers.CheckpointManagerOptions
TYPES = [CheckpointType.FLAX, CheckpointType.GDA]


class Count(base_input.BaseInput):
  """Batches 0, 1, 2, ..."""

  next_number = 0

  def get_next(self):
    self.next_number += 1
    return NestedMap(number=np.array([self.next_number - 1]))

  def _get_state_internal(self):
    return {'next_number': self.next_number}

  def _set_state_internal(self, state):
    self.next_number = state['next_number']


def _input():
  return Count.config(name='count', batch_size=1).Instantiate()


def _state(step):
  return train_states.TrainState(
    step=jnp.uint32(step),
    mdl_vars={'params': {'w': jnp.arange(8.0) + step}},
    opt_states=[(jnp.full(3, step, jnp.bfloat16),)],
  )


def _shapes():
  return jax.eval_shape(lambda: _state(0))


def _assert_state(state, step):
  jax.tree.map(np.testing.assert_array_equal, state, _state(step))


def _manager(
  directory,
  kind=CheckpointType.GDA,
  aux_checkpointers=None,
  use_ocdbt=False,
  **options,
):
  return checkpoint_managers.OrbaxCheckpointManager(
    directory,
    checkpoints.get_checkpointer(kind),
    options=Options(**options),
    checkpoint_type=kind,
    tensorstore_use_ocdbt=use_ocdbt,
    aux_checkpointers=aux_checkpointers,
  )


@pytest.mark.parametrize('kind', TYPES)
def test_saves_and_restores(tmp_path, kind):
  for step in (3, 7):
    saved = checkpoints.save_checkpoint(
      _state(step), tmp_path, checkpoint_type=kind
    )
    saved.wait_until_finished()
    saved.check_for_errors()
    saved.close()
  assert saved.all_steps() == [3, 7] and saved.latest_step() == 7
  restore = lambda **kwargs: checkpoints.restore_checkpoint(
    _shapes(), tmp_path, checkpoint_type=kind, **kwargs
  )
  _assert_state(restore(), 7)
  _assert_state(restore(step=3), 3)
  assert checkpoints.latest_checkpoint(
    tmp_path
  ) == checkpoints.make_checkpoint_step_dir(tmp_path, 7, kind)


@pytest.mark.parametrize('kind', TYPES)
def test_older_steps_need_overwrite(tmp_path, kind):
  save = lambda step, **kwargs: checkpoints.save_checkpoint(
    _state(step), tmp_path, checkpoint_type=kind, **kwargs
  ).close()
  save(7)
  save(7)
  save(3)
  assert checkpoints.retrieve_latest_checkpoint_step(tmp_path) == 7
  assert len(list(tmp_path.iterdir())) == 1
  save(3, overwrite=True)
  assert len(list(tmp_path.iterdir())) == 2
  with pytest.raises(ValueError, match='step 3 already exists'):
    save(3, overwrite=True)


def test_replicated_state_of_pmap_is_saved_once(tmp_path):
  state = _state(5)
  state = state.replace(step=jnp.stack([state.step] * 2))
  checkpoints.save_checkpoint(state, tmp_path).close()
  assert checkpoints.retrieve_latest_checkpoint_step(tmp_path) == 5


def test_what_a_manager_keeps(tmp_path):
  manager = _manager(
    tmp_path, save_interval_steps=2, max_to_keep=1, keep_period=4
  )
  saved = [step for step in range(8) if manager.save(step, _state(step))]
  assert saved == [0, 2, 4, 6]
  assert manager.all_steps() == [0, 4, 6]
  assert not manager.should_save(7) and manager.should_save(8)
  assert not manager.reached_preemption(8)
  assert manager.directory == tmp_path
  assert manager.version == 1.1
  manager.close()


@pytest.mark.parametrize('case', manager_options.CASES)
def test_options_keep_what_paxml_keeps(case):
  result = manager_options.run_case(case)
  expected = OPTION_RESULTS[case]
  if case in OPTION_DIFFERENCES:
    expected = OPTION_DIFFERENCES[case]
  assert result == expected


def _aux_checkpointers():
  orbax = pytest.importorskip('orbax.checkpoint')
  return {
    'notes': orbax.Checkpointer(orbax.JsonCheckpointHandler()),
    'arrays': orbax.AsyncCheckpointer(orbax.PyTreeCheckpointHandler()),
    'teacher': checkpoints.Checkpointer(checkpoints.PaxCheckpointHandler()),
  }


AUX_ITEMS = {
  'notes': {'loss': 2.5},
  'arrays': {'x': np.arange(3), 'y': 2},
  'teacher': _state(9),
}


def test_saves_when_the_processes_are_preempted(tmp_path, monkeypatch):
  manager = _manager(tmp_path, save_interval_steps=4)
  monkeypatch.setattr(
    multihost_utils, 'reached_preemption_sync_point', lambda step: step == 6
  )
  steps = [step for step in range(8) if manager.save(step, _state(step))]
  assert steps == [0, 4, 6]
  assert manager.reached_preemption(6) and not manager.reached_preemption(7)


@pytest.mark.parametrize('use_ocdbt', [False, True])
def test_further_items_are_part_of_a_checkpoint(tmp_path, use_ocdbt):
  manager = _manager(
    tmp_path, aux_checkpointers=_aux_checkpointers(), use_ocdbt=use_ocdbt
  )
  manager.save(1, _state(1), aux_items=AUX_ITEMS)
  manager.save(2, _state(2), aux_items={'notes': {}})
  # Without items the manager returns the state alone.
  _assert_state(manager.restore(1, _shapes()), 1)
  aux_items = {'notes': None, 'arrays': None, 'teacher': _shapes()}
  restored = manager.restore(1, _shapes(), aux_items=aux_items)
  assert {'state', 'metadata', *aux_items} == set(restored)
  _assert_state(restored.state, 1)
  _assert_state(restored['teacher'], 9)
  assert restored['metadata']['version'] == manager.version
  for name in ('notes', 'arrays'):
    jax.tree.map(np.testing.assert_array_equal, restored[name], AUX_ITEMS[name])
  with pytest.raises(KeyError, match="does not have the item 'arrays'"):
    manager.restore(2, _shapes(), aux_items={'arrays': None})
  manager.close()


@pytest.mark.filterwarnings('ignore:Sharding info not provided')
def test_orbax_restores_further_items(tmp_path):
  orbax = pytest.importorskip('orbax.checkpoint')
  aux_checkpointers = _aux_checkpointers()
  del aux_checkpointers['teacher']
  manager = _manager(
    tmp_path, aux_checkpointers=aux_checkpointers, use_ocdbt=True
  )
  aux_items = {name: AUX_ITEMS[name] for name in aux_checkpointers}
  manager.save(1, _state(1), aux_items=aux_items)
  options = orbax.CheckpointManagerOptions(
    step_prefix='checkpoint', step_format_fixed_length=8
  )
  with orbax.CheckpointManager(tmp_path, options=options) as other:
    restored = other.restore(1)
  for name, item in aux_items.items():
    jax.tree.map(np.testing.assert_array_equal, restored[name], item)


def test_arguments_of_the_checkpointer_of_an_item(tmp_path):
  orbax = pytest.importorskip('orbax.checkpoint')
  manager = _manager(tmp_path, aux_checkpointers=_aux_checkpointers())
  manager.save(1, _state(1), aux_items={'arrays': {'x': np.arange(3)}})
  as_floats = orbax.RestoreArgs(restore_type=np.ndarray, dtype=np.float32)
  restored = manager.restore(
    1,
    _shapes(),
    aux_items={'arrays': {'x': np.zeros(3)}},
    aux_restore_kwargs={'arrays': {'restore_args': {'x': as_floats}}},
  )
  assert restored['arrays']['x'].dtype == np.float32


def test_a_damaged_item_is_found(tmp_path):
  manager = _manager(tmp_path, aux_checkpointers=_aux_checkpointers())
  manager.save(1, _state(1), aux_items={'notes': {'loss': 2.5}})
  (file,) = (tmp_path / 'checkpoint_00000001' / 'notes').glob('metadata')
  file.write_text(file.read_text().replace('2.5', '2.6'))
  with pytest.raises(ValueError, match='notes/metadata is not what was'):
    manager.restore(1, _shapes())


def test_an_item_that_cannot_be_written_leaves_no_checkpoint(tmp_path):
  manager = _manager(tmp_path, aux_checkpointers=_aux_checkpointers())
  manager.save(1, _state(1))
  with pytest.raises(TypeError, match='JSON'):
    manager.save(2, _state(2), aux_items={'notes': {'not': object()}})
  assert manager.all_steps() == [1] and manager.latest_step() == 1
  assert manager.save(2, _state(2), aux_items={'notes': {}})


def test_restores_over_a_mesh(tmp_path):
  manager = _manager(tmp_path)
  manager.save(2, _state(2))
  mesh = Mesh(np.array(jax.devices()[:2]), ('data',))
  specs = jax.tree.map(lambda _: P(), _shapes())
  specs.mdl_vars['params']['w'] = P('data')
  restored = manager.restore(
    2,
    _shapes(),
    _shapes(),
    restore_kwargs={'specs': specs, 'mesh': mesh, 'transforms': None},
  )
  _assert_state(restored, 2)
  assert restored.mdl_vars['params']['w'].sharding.spec == P('data')
  with pytest.raises(ValueError, match='PaxMetadata is not compatible'):
    manager.restore(
      2,
      _shapes(),
      _shapes().replace(
        mdl_vars={'params': {'w': jax.ShapeDtypeStruct((7,), jnp.float32)}}
      ),
    )


def test_the_input_is_part_of_a_checkpoint(tmp_path):
  manager = _manager(tmp_path)
  inputs = _input()
  inputs.get_next()
  manager.save(1, _state(1), train_input_pipeline=inputs)
  expected = inputs.get_next()
  resumed = _input()
  manager.restore(1, _shapes(), train_input_pipeline=resumed)
  jax.tree.map(np.testing.assert_array_equal, resumed.get_next(), expected)


@pytest.mark.parametrize(
  'handler',
  [checkpoints.FlaxCheckpointHandler(), checkpoints.PaxCheckpointHandler()],
)
@pytest.mark.parametrize(
  'checkpointer_class',
  [checkpoints.Checkpointer, checkpoints.AsyncCheckpointer],
)
def test_checkpointers_save_at_a_path(tmp_path, handler, checkpointer_class):
  checkpointer = checkpointer_class(handler)
  path = tmp_path / 'checkpoint_1' / 'nested'
  checkpointer.save(path, _state(1))
  checkpointer.wait_until_finished()
  _assert_state(checkpointer.restore(path, item=_shapes()), 1)
  with pytest.raises(ValueError, match='already exists'):
    checkpointer.save(path, _state(2))
  checkpointer.save(path, _state(2), force=True)
  _assert_state(checkpointer.restore(path, _shapes()), 2)
  with pytest.raises(ValueError, match='needs the shapes'):
    checkpointer.restore(path)
  checkpointer.close()


def test_a_handler_restores_the_folder_of_the_state(tmp_path):
  _manager(tmp_path).save(1, _state(1))
  path = checkpoints.make_checkpoint_step_dir(tmp_path, 1) / 'state'
  restored = checkpoints.PaxCheckpointHandler().restore(path, _shapes())
  _assert_state(restored, 1)


def test_the_state_of_an_input_alone(tmp_path):
  handler = checkpoints.BaseInputCheckpointHandler()
  inputs = _input()
  inputs.get_next()
  handler.save(tmp_path / 'train_input', inputs)
  expected = inputs.get_next()
  resumed = _input()
  handler.restore(tmp_path / 'train_input', resumed)
  jax.tree.map(np.testing.assert_array_equal, resumed.get_next(), expected)
  with pytest.raises(ValueError, match='does not exist'):
    handler.restore(tmp_path / 'missing', resumed)


def test_mistakes(tmp_path):
  with pytest.raises(ValueError, match='Unexpected checkpoint_type'):
    checkpoints.get_checkpointer(CheckpointType.PERSISTENCE)
  with pytest.raises(ValueError, match='Must specify checkpoint type'):
    checkpoint_managers.OrbaxCheckpointManager(
      tmp_path, checkpoints.get_checkpointer(CheckpointType.GDA)
    )
  with pytest.raises(ValueError, match='todelete_subdir must be the name'):
    _manager(tmp_path, todelete_subdir='../old')
  with pytest.raises(ValueError, match="'more', which is not in aux_check"):
    _manager(tmp_path).save(1, _state(1), aux_items={'more': 1})
  with pytest.raises(ValueError, match="other than .*, got 'state'"):
    _manager(tmp_path, aux_checkpointers={'state': None})
  with pytest.raises(NotImplementedError, match='use CheckpointType.GDA'):
    _manager(tmp_path, CheckpointType.FLAX, aux_checkpointers={'more': None})
  with pytest.raises(NotImplementedError, match='best_fn is not supported'):
    _manager(tmp_path, best_fn=max)
  interval = datetime.timedelta(hours=1)
  assert Options(keep_time_interval=interval).max_to_keep is None


def test_a_training_checkpointer_is_abstract():
  with pytest.raises(TypeError, match='abstract'):
    checkpoints.TrainingCheckpointer()


@pytest.mark.parametrize('kind', TYPES)
def test_a_replicated_state_is_saved_without_its_axis_of_devices(
  tmp_path, kind
):
  replicated = jax.tree.map(lambda x: jnp.stack([x, x + 1]), _state(3))
  saved = checkpoints.save_checkpoint(
    replicated,
    tmp_path,
    checkpoint_type=kind,
    train_state_unpadded_shape_dtype_struct=_shapes(),
  )
  # Complete without `wait_until_finished`.
  assert checkpoints.latest_checkpoint(tmp_path)
  saved.close()
  restored = checkpoints.restore_checkpoint(
    _shapes(), tmp_path, checkpoint_type=kind
  )
  _assert_state(restored, 3)
  # The shapes may be those of the replicated state, too.
  restored = checkpoints.restore_checkpoint(
    jax.eval_shape(lambda: replicated), tmp_path, checkpoint_type=kind
  )
  expected = jax.tree.map(lambda x: jnp.stack([x, x]), _state(3))
  jax.tree.map(np.testing.assert_array_equal, restored, expected)


@pytest.mark.parametrize('kind', TYPES)
def test_expired_checkpoints_are_renamed_into_a_folder(tmp_path, kind):
  manager = _manager(tmp_path, kind, max_to_keep=1, todelete_subdir='archive')
  for step in range(3):
    manager.save(step, _state(step))
  manager.close()
  assert manager.all_steps() == [2]
  archive = tmp_path / 'archive'
  assert sorted(p.name for p in archive.iterdir()) == [
    checkpoints.make_checkpoint_step_dir(tmp_path, step, kind).name
    for step in range(2)
  ]
  restored = checkpoints.restore_checkpoint(
    _shapes(), archive, checkpoint_type=kind
  )
  _assert_state(restored, 1)


@pytest.mark.parametrize(
  'node', [optax.MaskedNode(), py_utils.BpropMaskedNode()]
)
def test_masked_nodes_come_back_as_those_of_the_shapes(tmp_path, node):
  state = _state(1)
  state.mdl_vars['params']['masked'] = node
  manager = _manager(tmp_path)
  manager.save(1, state)
  specs = jax.tree.map(lambda _: P(), _state(1))
  specs.mdl_vars['params']['masked'] = P()
  mesh = Mesh(np.array(jax.devices()[:1]), ('data',))
  restored = manager.restore(
    1,
    jax.eval_shape(lambda: state),
    restore_kwargs={'specs': specs, 'mesh': mesh},
  )
  assert type(restored.mdl_vars['params'].pop('masked')) is type(node)
  _assert_state(restored, 1)


class CountFiles(Count):
  """An input that writes and reads its state itself."""

  _get_state_internal = base_input.BaseInput._get_state_internal
  _set_state_internal = base_input.BaseInput._set_state_internal

  def save(self, checkpoint_path):
    path = pathlib.Path(f'{checkpoint_path}.index')
    path.write_text(str(self.next_number))

  def restore(self, checkpoint_path):
    path = pathlib.Path(f'{checkpoint_path}.index')
    self.next_number = int(path.read_text())


def test_an_input_that_overrides_save_and_restore(tmp_path):
  source = CountFiles.config(name='count', batch_size=1).Instantiate()
  source.get_next()
  manager = _manager(tmp_path)
  manager.save(1, _state(1), train_input_pipeline=source)
  source.get_next()
  manager.restore(1, _shapes(), train_input_pipeline=source)
  assert source.next_number == 1


def test_checkpointers_of_orbax(tmp_path):
  orbax = pytest.importorskip('orbax.checkpoint')
  handler = checkpoints.PaxCheckpointHandler(enforce_restore_shape_check=True)
  manager = checkpoint_managers.OrbaxCheckpointManager(
    tmp_path,
    orbax.Checkpointer(handler),
    checkpoint_type=CheckpointType.GDA,
    tensorstore_use_ocdbt=False,
  )
  assert manager.save(2, _state(2), _shapes())
  # Written in the calling thread.
  assert manager.all_steps() == [2]
  _assert_state(manager.restore(2, _shapes()), 2)


class CountBytes(Count):
  """An input whose state is bytes, as inputs written for paxml return it."""

  def _get_state_internal(self):
    return bytes([255, self.next_number])

  def _set_state_internal(self, state):
    self.next_number = state[1]


def test_the_state_of_an_input_may_be_bytes(tmp_path):
  source = CountBytes.config(name='count', batch_size=1).Instantiate()
  source.get_next()
  manager = _manager(tmp_path)
  manager.save(1, _state(1), train_input_pipeline=source)
  source.get_next()
  manager.restore(1, _shapes(), train_input_pipeline=source)
  assert source.next_number == 1


def test_metadata_of_dataclasses():
  arrays = checkpoint_metadata.PaxMetadata(
    1.1,
    train_states.TrainState(
      1, {'w': checkpoint_metadata.ArrayMetadata(None, True)}, []
    ),
  )
  assert json.dumps(arrays.to_dict()['train_state_metadata']['mdl_vars']) == (
    '{"w": {"_array_metadata_tag": true, "is_optax_masked_node": true}}'
  )
