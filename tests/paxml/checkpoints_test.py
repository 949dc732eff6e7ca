# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: data=//tests/golden:all_files
"""Train states are restored from what paxml wrote, with paxml's signatures."""

from __future__ import annotations

import collections

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import serialization
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pax import checkpoints as pax_checkpoints
from pax import tasks_lib, train_states
from paxml import checkpoints
from praxis.optimizers.adafactor_state import ShardedAdafactorState as State
from tests.testing import paxml_checkpoints

CheckpointType = checkpoints.CheckpointType
_PaxmlState = collections.namedtuple(
  'ShardedAdafactorState', ('count', 'm', 'm_scale', 'vr', 'vc', 'v')
)


@pytest.fixture(scope='module')
def archive(tmp_path_factory):
  """Returns the folder of the archive and the values of the state."""
  directory = tmp_path_factory.mktemp('paxml')
  return directory, paxml_checkpoints.extract(directory)


def _mesh() -> Mesh:
  return Mesh(np.array(jax.devices()[:4]), ('data',))


def _specs(shapes):
  return jax.tree.map(
    lambda x: P(None, None, 'data') if len(x.shape) == 3 else P(), shapes
  )


def _assert_equal(state, values):
  leaves = jax.tree.leaves(state)
  assert len(leaves) == len(values)
  for leaf, value in zip(leaves, values, strict=True):
    np.testing.assert_array_equal(leaf, value)
    assert leaf.dtype == value.dtype


@pytest.mark.parametrize('name', paxml_checkpoints.FORMATS)
@pytest.mark.parametrize('kind', [CheckpointType.FLAX, CheckpointType.GDA])
def test_restores_what_paxml_wrote(archive, name, kind):
  directory, values = archive
  shapes = paxml_checkpoints.shapes()
  state = checkpoints.restore_checkpoint(
    shapes, str(directory / name), checkpoint_type=kind
  )
  assert jax.tree.structure(state) == jax.tree.structure(shapes)
  assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(state))
  _assert_equal(state, values)


@pytest.mark.parametrize('name', paxml_checkpoints.FORMATS)
def test_restores_over_a_mesh(archive, name):
  directory, values = archive
  shapes = paxml_checkpoints.shapes()
  state = checkpoints.restore_checkpoint(
    shapes,
    directory / name,
    _mesh(),
    CheckpointType.GDA,
    _specs(shapes),
    paxml_checkpoints.STEP,
    state_unpadded_shape_dtype_struct=shapes,
    tensorstore_use_ocdbt=name == 'ocdbt',
  )
  _assert_equal(state, values)
  w = state.mdl_vars['params']['sub']['linear']['w']
  assert w.sharding.spec == P(None, None, 'data')


@pytest.mark.parametrize('name', paxml_checkpoints.FORMATS)
def test_restores_without_optimizer_states(archive, name):
  directory, values = archive
  hparams, _ = paxml_checkpoints.model()
  shapes = tasks_lib.create_state_unpadded_shapes(hparams, True, None)
  state = checkpoints.restore_checkpoint(shapes, directory / name)
  _assert_equal(state, values[:3])


@pytest.mark.parametrize('name', paxml_checkpoints.FORMATS)
def test_our_checkpointer_restores_what_paxml_wrote(archive, name, tmp_path):
  directory, values = archive
  (tmp_path / 'checkpoints').symlink_to(directory / name)
  checkpointer = pax_checkpoints.create_checkpointer(
    pax_checkpoints.CheckpointOptions(), str(tmp_path)
  )
  restored = checkpointer.restore(paxml_checkpoints.shapes())
  assert restored.step == paxml_checkpoints.STEP
  _assert_equal(restored.state, values)


def test_pads_truncates_and_casts_over_a_mesh(archive):
  directory, values = archive
  hparams, learner = paxml_checkpoints.model()
  shapes = tasks_lib.create_state_padded_shapes(
    hparams, [3], ['data'], False, [learner]
  )
  w = shapes.mdl_vars['params']['sub']['linear']['w']
  assert w.shape == (2, 4, 6)
  shapes.mdl_vars['params']['sub']['bias']['b'] = jax.ShapeDtypeStruct(
    (2, 3), jnp.bfloat16
  )
  mesh = Mesh(np.array(jax.devices()[:3]), ('data',))
  restore = lambda **kwargs: checkpoints.restore_checkpoint(
    shapes,
    directory / 'gda',
    mesh,
    CheckpointType.GDA,
    _specs(shapes),
    **kwargs,
  )
  variables = restore().mdl_vars['params']['sub']
  np.testing.assert_array_equal(
    variables['linear']['w'], np.pad(values[2], [(0, 0), (0, 0), (0, 2)])
  )
  np.testing.assert_array_equal(
    variables['bias']['b'], values[1][:, :3].astype(jnp.bfloat16)
  )
  with pytest.raises(ValueError, match='Restored parameter shape mismatch'):
    restore(enforce_restore_shape_check=True)
  with pytest.raises(ValueError, match='PaxMetadata is not compatible'):
    restore(state_unpadded_shape_dtype_struct=shapes)


def test_restores_replicated_for_pmap(archive):
  directory, values = archive
  shapes = paxml_checkpoints.shapes()
  state = tasks_lib.restore_pmap_from_tensorstore(shapes, directory / 'gda')
  _assert_equal(state, values)
  assert {x.sharding for x in jax.tree.leaves(state)} == {
    jax.sharding.SingleDeviceSharding(jax.devices()[0])
  }
  state = tasks_lib.restore_pmap_from_tensorstore(
    shapes, directory / 'gda', paxml_checkpoints.STEP, _mesh()
  )
  _assert_equal(state, values)
  assert all(x.sharding.mesh == _mesh() for x in jax.tree.leaves(state))


def test_leaves_of_another_name_are_restored_in_order(archive):
  directory, values = archive
  shapes = paxml_checkpoints.shapes()
  variables = shapes.mdl_vars['params']['sub']
  variables['other'] = {'v': variables.pop('linear')['w']}
  state = checkpoints.restore_checkpoint(shapes, directory / 'flax')
  _assert_equal(state, values)
  with pytest.raises(ValueError, match=r'sub\.other\.v is not in it'):
    checkpoints.restore_checkpoint(
      shapes, directory / 'gda', checkpoint_type=CheckpointType.GDA
    )


def test_variables_of_another_name_are_restored_without_the_optimizer(
  archive, tmp_path
):
  """As adapters that a program restores without the level `params`."""
  directory, values = archive
  written = jax.tree.unflatten(
    jax.tree.structure(paxml_checkpoints.shapes()), values
  )
  checkpoints.save_checkpoint(written, tmp_path).wait_until_finished()
  shapes = paxml_checkpoints.shapes().replace(opt_states=[], extra_state=())
  shapes = shapes.replace(mdl_vars=shapes.mdl_vars['params'])
  for folder in (directory / 'flax', tmp_path):
    state = checkpoints.restore_checkpoint(shapes, folder)
    _assert_equal(state, values[:3])
  shapes.mdl_vars['sub']['linear']['w'] = jax.ShapeDtypeStruct((7,), 'float32')
  with pytest.raises(ValueError, match=r'mdl_vars\.sub.* is not in it'):
    checkpoints.restore_checkpoint(shapes, tmp_path)


def test_the_state_of_adafactor_is_restored_by_name(tmp_path):
  """That of paxml has an array of one element for a moment that is absent."""
  tree = lambda value: {'params': {'w': value}}
  absent = tree(np.zeros(1, np.float32))
  vr, vc = tree(np.float32([1, 2])), tree(np.float32([3, 4, 5]))
  state = train_states.TrainState(
    step=np.int32(3),
    mdl_vars=tree(np.ones([2, 3], np.float32)),
    opt_states=[(_PaxmlState(np.int32(3), absent, absent, vr, vc, absent),)],
  )
  leaves, structure = jax.tree.flatten(state)
  (tmp_path / 'checkpoint_3').write_bytes(
    serialization.msgpack_serialize(
      {'flattened_state': leaves, 'str_pytree_state': str(structure)}
    )
  )
  masked = tree(optax.MaskedNode())
  ours = State(np.int32(0), masked, masked, vr, vc, masked, {})
  restored = checkpoints.restore_checkpoint(
    state.replace(opt_states=[(ours,)]), tmp_path
  )
  _assert_equal(
    restored.opt_states, [np.int32(3), vr['params']['w'], vc['params']['w']]
  )


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (dict(checkpoint_dir='none'), "checkpoint_dir='none' does not exist"),
    (dict(step=8), 'no checkpoint of step 8'),
    (
      dict(checkpoint_type=CheckpointType.PERSISTENCE),
      'Unexpected checkpoint_type',
    ),
    (
      dict(state_global_shapes=(1, 2)),
      'must be a subclass',
    ),
  ],
)
def test_mistakes(archive, change, message):
  arguments = dict(
    state_global_shapes=paxml_checkpoints.shapes(),
    checkpoint_dir=archive[0] / 'flax',
  )
  with pytest.raises(ValueError, match=message):
    checkpoints.restore_checkpoint(**arguments | change)


def test_empty_directory(tmp_path):
  with pytest.raises(ValueError, match='No checkpoints were found in'):
    checkpoints.restore_checkpoint(paxml_checkpoints.shapes(), tmp_path)
