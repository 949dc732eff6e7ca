# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Training states from safetensors files."""

from __future__ import annotations

import json
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import partitioning
from pax.contrib.gpu.scripts_gpu import llama_checkpoints, llama_weights
from praxis import py_utils
from praxis.nested_map import NestedMap
from tests.pax.contrib.gpu.scripts_gpu import tiny_llama
from tests.pax.tasks.lm import tiny_training

_V, _D, _F = 64, 16, 24
_LAYER = {
  'self_attn.q_proj': (_D, _D),
  'self_attn.k_proj': (_D, _D),
  'self_attn.v_proj': (_D, _D),
  'self_attn.o_proj': (_D, _D),
  'mlp.gate_proj': (_F, _D),
  'mlp.up_proj': (_F, _D),
  'mlp.down_proj': (_D, _F),
  'input_layernorm': (_D,),
  'post_attention_layernorm': (_D,),
}


def _write(path, arrays):
  names = {np.dtype(np.float32): 'F32', np.dtype(jnp.bfloat16): 'BF16'}
  header, data = {'__metadata__': {'format': 'pt'}}, b''
  for name, array in arrays.items():
    at = [len(data), len(data) + array.nbytes]
    header[name] = {
      'dtype': names.get(array.dtype, 'I64'),
      'shape': array.shape,
      'data_offsets': at,
    }
    data += array.tobytes()
  text = json.dumps(header).encode()
  path.write_bytes(struct.pack('<Q', len(text)) + text + data)


@pytest.fixture
def weights():
  random = np.random.default_rng(0)
  shapes = {'model.embed_tokens': (_V, _D), 'lm_head': (_V, _D)}
  shapes['model.norm'] = (_D,)
  for i in range(2):
    shapes |= {f'model.layers.{i}.{k}': s for k, s in _LAYER.items()}
  return {
    f'{name}.weight': random.normal(size=shape).astype(jnp.bfloat16)
    for name, shape in shapes.items()
  }


def _target(llama):
  rows = np.ones(tiny_training.ROWS, np.float32)
  batch = NestedMap(tiny_training.batch(), eval_sample_weights=rows)
  return partitioning.partition_task(
    llama.task(), batch, devices=jax.devices()[:2]
  ).state_metadata


def test_state_has_the_weights_and_their_sharding(weights, tmp_path):
  half = len(weights) // 2
  parts = list(weights.items())
  _write(tmp_path / 'model-1.safetensors', dict(parts[:half]))
  _write(tmp_path / 'model-2.safetensors', dict(parts[half:]))
  llama = tiny_llama.made(
    HUGGINGFACE_PATH=str(tmp_path), ICI_MESH_SHAPE=[1, 2, 1]
  )
  target, train_p = _target(llama), llama.task().train
  assert train_p.external_checkpoint_path == str(tmp_path)
  handler = train_p.external_checkpoint_handler.Instantiate()
  state = handler.restore(str(tmp_path), item=target)

  wanted = dict(
    py_utils.tree_paths(llama_weights.from_huggingface(weights, llama))
  )
  for path, array in py_utils.tree_paths(state.mdl_vars):
    np.testing.assert_array_equal(array, wanted[path].astype(np.float32))
  same = jax.tree.map(
    lambda x, like: x.sharding == like.sharding and x.dtype == like.dtype,
    state,
    target,
  )
  assert all(jax.tree.leaves(same))
  assert state.step == 0
  assert not any(np.any(x) for x in jax.tree.leaves(state.opt_states))

  lora = _target(tiny_llama.made(USE_LORA=True, ICI_MESH_SHAPE=[1, 2, 1]))
  with pytest.raises(ValueError, match='lora_a, got none; if LoRA adds it'):
    handler.restore(str(tmp_path), item=lora)
  without = llama_checkpoints.HuggingFaceHandler()
  with pytest.raises(ValueError, match='constants .* must be set'):
    without.restore(str(tmp_path), item=target)
