# SPDX-License-Identifier: Apache-2.0
# bazel: deps=//pax/tasks:experiments
# bazel: size=medium
"""MaxText's converter of GPT-3 finds every array of a checkpoint of ours.

`convert_gpt3_ckpt_from_paxml` of AI-Hypercomputer/maxtext e591f30c (2026-08-22)
opens each array of a checkpoint of paxml by TensorStore, under the names below,
and transposes it to the shape of MaxText's parameter. The shapes are those of
its model `gpt3-52k` with two layers, scanned along axis 1.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
import tensorstore as ts

from pax.checkpoints.checkpoint_reader import CheckpointReader
from tests.integration import binary

_LAYERS, _VOCAB, _POSITIONS = 2, 1024, 2048
_DIM, _HIDDEN, _HEADS, _HEAD_DIM = 16, 64, 2, 8
_SMALL = {
  'SYNTHETIC_DATA': True,
  'ICI_MESH_SHAPE': [1, 2, 1],
  'PERCORE_BATCH_SIZE': 1,
  'MAX_SEQ_LEN': 16,
  'TRAINABLE_PE_MAX_SEQ_LEN': _POSITIONS,
  'VOCAB_SIZE': _VOCAB,
  'NUM_LAYERS': _LAYERS,
  'MODEL_DIMS': _DIM,
  'HIDDEN_DIMS': _HIDDEN,
  'NUM_HEADS': _HEADS,
  'DIMS_PER_HEAD': _HEAD_DIM,
  'LR_COS_WARMUP': 1,
  'LR_COS_DECAY_START': 2,
  'task.train.num_train_steps': 2,
}
_LAYER = 'transformer.repeat.sub.x_layers_0'


def _part_of_qkv(index):
  return lambda x: np.moveaxis(x[:, index], 0, 1)


def _second(x):
  return np.moveaxis(x, 0, 1)


# By the name below `params.lm`: MaxText's transposition and shape, of one or of
# several parameters that it makes of the array.
_PARAMETERS = {
  'softmax.logits_ffn.linear.w': [(np.transpose, (_VOCAB, _DIM))],
  'position_emb.emb_var': [(np.asarray, (_POSITIONS, _DIM))],
  'final_ln.scale': [(np.transpose, (_DIM,))],
  'final_ln.bias': [(np.asarray, (_DIM,))],
  f'{_LAYER}.layer_norm.scale': [(_second, (_DIM, _LAYERS))],
  f'{_LAYER}.layer_norm.bias': [(_second, (_DIM, _LAYERS))],
  f'{_LAYER}.self_attention.combined_qkv.w': [
    *[(_part_of_qkv(i), (_DIM, _LAYERS, _HEADS, _HEAD_DIM)) for i in range(3)],
    (
      lambda x: np.moveaxis(x, [2, 0], [0, 1]),
      (_DIM, _LAYERS, 3, _HEADS, _HEAD_DIM),
    ),
  ],
  f'{_LAYER}.self_attention.combined_qkv.b': [
    *[(_part_of_qkv(i), (_HEADS, _LAYERS, _HEAD_DIM)) for i in range(3)],
    (_second, (3, _LAYERS, _HEADS, _HEAD_DIM)),
  ],
  f'{_LAYER}.self_attention.post.w': [
    (
      lambda x: np.moveaxis(x, [0, 1], [1, -1]),
      (_HEADS, _LAYERS, _HEAD_DIM, _DIM),
    )
  ],
  f'{_LAYER}.self_attention.post.b': [(_second, (_DIM, _LAYERS))],
  f'{_LAYER}.ff_layer.layer_norm.scale': [(_second, (_DIM, _LAYERS))],
  f'{_LAYER}.ff_layer.layer_norm.bias': [(_second, (_DIM, _LAYERS))],
  f'{_LAYER}.ff_layer.ffn_layer1.linear.w': [
    (_second, (_DIM, _LAYERS, _HIDDEN))
  ],
  f'{_LAYER}.ff_layer.ffn_layer1.bias.b': [(_second, (_HIDDEN, _LAYERS))],
  f'{_LAYER}.ff_layer.ffn_layer2.linear.w': [
    (_second, (_HIDDEN, _LAYERS, _DIM))
  ],
  f'{_LAYER}.ff_layer.ffn_layer2.bias.b': [(_second, (_DIM, _LAYERS))],
}


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  job = tmp_path_factory.mktemp('gpt3')
  done = binary.run(
    'tasks.lm.params.c4.C4SpmdGpt3L16AdamOrgHP',
    job,
    '--notensorstore_use_ocdbt',
    *(f'--set={name}={value}' for name, value in _SMALL.items()),
    devices=2,
  )
  assert done.returncode == 0, done.stderr
  return job / 'checkpoints/checkpoint_00000002'


def _open(checkpoint, name):
  """Returns an array as the converter reads it, from a file system."""
  spec = {
    'driver': 'zarr',
    'metadata_key': '.zarray',
    'kvstore': {'driver': 'file', 'path': str(checkpoint / 'state' / name)},
  }
  return ts.open(ts.Spec(spec), open=True).result().read().result()


def _abstract(array):
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


def test_step_and_count(checkpoint):
  assert _open(checkpoint, 'step') == 2
  assert _open(checkpoint, 'opt_states_0.no_prefix_0.count') == 2


@pytest.mark.parametrize('name', _PARAMETERS)
def test_parameters_and_moments(checkpoint, name):
  group = f'p#{_LAYERS}#i-1_2' if _LAYER in name else 'no_prefix_2'
  places = ['mdl_vars', f'opt_states_0.{group}.m', f'opt_states_0.{group}.v']
  found = {
    place: _open(checkpoint, place)
    for place in (f'{place}.params.lm.{name}' for place in places)
  }
  for array in found.values():
    for transform, shape in _PARAMETERS[name]:
      assert transform(array).shape == shape
  restored = CheckpointReader(checkpoint).read(
    {place: _abstract(array) for place, array in found.items()}
  )
  for place, array in found.items():
    np.testing.assert_array_equal(array, restored[place])


def test_the_converter_leaves_nothing_behind(checkpoint):
  names = CheckpointReader(checkpoint).shapes
  found = {name for name in names if '.params.lm.' in name}
  assert {name.partition('.params.lm.')[2] for name in found} == set(
    _PARAMETERS
  )
  assert len(found) == 3 * len(_PARAMETERS)
