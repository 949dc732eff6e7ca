# bazel: size=small
# SPDX-License-Identifier: Apache-2.0
"""Placement of LLaMA weights in variables; tests/compare checks the logits."""

from __future__ import annotations

import numpy as np
import pytest

from pax.contrib.gpu.scripts_gpu import llama_weights
from tests.pax.contrib.gpu.scripts_gpu import tiny_llama

_V, _D, _F, _N, _H = 64, 16, 24, 4, 4


def _meta(keys=_N):
  random = np.random.default_rng(0)
  shapes = {'tok_embeddings': (_V, _D), 'output': (_V, _D), 'norm': (_D,)}
  for i in range(2):
    shapes |= {
      f'layers.{i}.attention.wq': (_N * _H, _D),
      f'layers.{i}.attention.wk': (keys * _H, _D),
      f'layers.{i}.attention.wv': (keys * _H, _D),
      f'layers.{i}.attention.wo': (_D, _N * _H),
      f'layers.{i}.feed_forward.w1': (_F, _D),
      f'layers.{i}.feed_forward.w2': (_D, _F),
      f'layers.{i}.feed_forward.w3': (_F, _D),
      f'layers.{i}.attention_norm': (_D,),
      f'layers.{i}.ffn_norm': (_D,),
    }
  return {f'{k}.weight': random.normal(size=s) for k, s in shapes.items()}


def test_every_weight_has_its_place():
  weights = _meta() | {'rope.freqs': np.ones(2)}
  lm = llama_weights.from_meta(weights, tiny_llama.made())['params']['lm']
  layer = lm['transformer']['x_layers_1']
  x = np.random.default_rng(1).normal(size=_D)
  of = lambda name: weights[f'layers.1.{name}.weight']
  qkv = np.einsum(
    'd,kdnh->knh', x, layer['self_attention']['combined_qkv']['w']
  )
  for found, at in zip(qkv, ('wq', 'wk', 'wv'), strict=True):
    np.testing.assert_allclose(found.ravel(), of(f'attention.{at}') @ x)
  post = layer['self_attention']['post']['w']
  heads = x.reshape(_N, _H)
  np.testing.assert_allclose(
    np.einsum('nh,dnh->d', heads, post), of('attention.wo') @ x
  )
  for name, at in (('ffn_layer1', 'w3'), ('ffn_layer1_gate', 'w1')):
    linear = layer['ff_layer'][name]['linear']['w']
    np.testing.assert_allclose(x @ linear, of(f'feed_forward.{at}') @ x)
  assert layer['ff_layer']['ffn_layer2']['linear']['w'].shape == (_F, _D)
  assert layer['layer_norm']['scale'] is of('attention_norm')
  assert layer['ff_layer']['layer_norm']['scale'] is of('ffn_norm')


def test_shared_keys_and_layers_in_one_array():
  llama = tiny_llama.made(USE_MQA=True, NUM_KV_HEADS=2, USE_REPEATED_LAYER=True)
  lm = llama_weights.from_meta(_meta(2), llama)['params']['lm']
  attention = lm['transformer']['repeat']['sub']['x_layers_0']['self_attention']
  assert attention['query']['w'].shape == (2, _D, _N, _H)
  assert attention['key']['w'].shape == (2, _D, 2, _H)
  assert attention['post']['w'].shape == (2, _D, _N, _H)


def test_halves_of_hugging_face_become_neighbors():
  names = {
    'self_attn.q_proj': np.arange(8.0).reshape(8, 1),
    'self_attn.v_proj': np.arange(8.0).reshape(8, 1),
  }
  neighbors = llama_weights._interleave_halves(names['self_attn.q_proj'], 4)
  np.testing.assert_array_equal(neighbors.ravel(), [0, 2, 1, 3, 4, 6, 5, 7])


@pytest.mark.parametrize(
  ('change', 'match'),
  [
    ({'norm.weight': None}, r'norm.weight must have shape \[16\], got None'),
    ({'output.weight': np.ones((63, 16))}, r'\[64, 16\], got \[63, 16\]'),
    ({'layers.2.ffn_norm.weight': np.ones(16)}, '1 weights do not belong'),
    ({'layers.0.attention.wq.bias': np.ones(16)}, 'attention.wq.bias'),
  ],
)
def test_says_what_does_not_fit(change, match):
  weights = {k: w for k, w in (_meta() | change).items() if w is not None}
  with pytest.raises(ValueError, match=match):
    llama_weights.from_meta(weights, tiny_llama.made())
