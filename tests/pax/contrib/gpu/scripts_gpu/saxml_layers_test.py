# bazel: size=small
# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings of adjacent channels and parallel layers, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from pax.contrib.gpu.scripts_gpu import saxml_layers
from praxis import pax_fiddle
from praxis.layers import attentions, normalizations
from tests.praxis.layers import running

_B, _T, _N, _H = 2, 5, 3, 8


def _rotated(x, positions, size):
  """Each pair of channels 2i, 2i + 1 below `size` as a complex number."""
  frequencies = 10_000.0 ** (-np.arange(0, size, 2) / size)
  turns = np.exp(1j * positions[..., None, None] * frequencies)
  pairs = (x[..., 0:size:2] + 1j * x[..., 1:size:2]) * turns
  result = np.array(x)
  result[..., 0:size:2], result[..., 1:size:2] = pairs.real, pairs.imag
  return result


def _embed(cls, x, position=None, **fields):
  config = pax_fiddle.Config(cls, embedding_dims=_H, **fields)
  layer, variables = running.build(config, x)
  return running.run(layer, variables, x, position)


@pytest.mark.parametrize('position', [None, [[3, 1, 0, 2, 9], [5, 6, 7, 8, 9]]])
def test_llama_rotates_neighbors(position):
  x = running.normal(_B, _T, _N, _H)
  at = None if position is None else np.array(position, np.int32)
  found = _embed(saxml_layers.LLaMARotaryEmbedding, x, at)
  positions = np.arange(_T)[None] if at is None else at
  np.testing.assert_allclose(found, _rotated(x, positions, _H), atol=1e-5)


def test_gptj_rotates_the_first_channels():
  x = running.normal(_B, _T, _N, _H)
  fields = {'rotary_dim': 4, 'max_position_embeddings': _T}
  found = _embed(saxml_layers.GPTJRotaryEmbedding, x, **fields)
  wanted = _rotated(x, np.arange(_T)[None], 4)
  np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
  ('fields', 'match'),
  [
    ({'rotary_dim': 3}, 'rotary_dim must be even'),
    ({'rotary_dim': 10}, 'at most embedding_dims=8'),
    ({'max_position_embeddings': 4}, 'at most max_position_embeddings=4'),
  ],
)
def test_gptj_says_what_does_not_fit(fields, match):
  with pytest.raises(ValueError, match=match):
    _embed(
      saxml_layers.GPTJRotaryEmbedding, running.normal(_B, _T, _N, _H), **fields
    )


def _parallel(policy):
  config = pax_fiddle.Config(
    saxml_layers.ParallelTransformer,
    input_dims=6,
    hidden_dims=10,
    num_heads=2,
    norm_policy=policy,
  )
  config.tr_fflayer_tpl.add_skip_connection = False
  x = running.normal(_B, _T, 6)
  mask = attentions.causal_mask(x)
  layer, variables = running.build(config, x, None, mask)
  return x, mask, layer, variables


@pytest.mark.parametrize('policy', ['pre', 'primer_hybrid', 'post'])
def test_parallel_layer_is_a_sum(policy):
  x, mask, layer, variables = _parallel(policy)
  found, _ = running.run(layer, variables, x, None, mask)
  params = variables['params']
  norm = lambda name: _norm(x, params[name])
  before, after = {
    'pre': lambda: (norm('layer_norm'),) * 2,
    'primer_hybrid': lambda: (norm('pre_layer_norm'), norm('post_layer_norm')),
    'post': lambda: (x, x),
  }[policy]()
  attention = pax_fiddle.Config(
    attentions.DotProductAttention, input_dim=6, hidden_dim=6, num_heads=2
  )
  made = attention.set(name='attention').Instantiate()
  attended, _ = running.run(
    made, {'params': params['self_attention']}, before, before, before, mask
  )
  fed = _feed_forward(after, params['ff_layer'])
  np.testing.assert_allclose(found, x + attended + fed, atol=1e-5)


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'use_cross_attention': True}, 'no cross attention'),
    ({'atten_residual_weight': 0.5}, 'atten_residual_weight must be 1'),
  ],
)
def test_parallel_layer_refuses_what_it_does_not_compute(fields, message):
  config = pax_fiddle.Config(
    saxml_layers.ParallelTransformerOnlyNormAttentionInputs,
    input_dims=6,
    hidden_dims=10,
    num_heads=2,
    **fields,
  )
  x = running.normal(_B, _T, 6)
  with pytest.raises(ValueError, match=message):
    running.build(config, x, None, attentions.causal_mask(x))


def test_fake_norm_has_no_variables():
  x = running.normal(_B, 4)
  config = pax_fiddle.Config(saxml_layers.FakeLayerNorm, dim=4)
  layer, variables = running.build(config, x)
  assert not variables
  np.testing.assert_array_equal(running.run(layer, variables, x), x)
  assert issubclass(config.cls, normalizations.LayerNorm)


def _norm(x, params):
  mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
  normed = (x - mean) / np.sqrt(var + 1e-6)
  return normed * (1 + params['scale']) + params['bias']


def _feed_forward(x, params):
  first, second = params['ffn_layer1'], params['ffn_layer2']
  hidden = x @ first['linear']['w'] + first['bias']['b']
  return np.maximum(hidden, 0) @ second['linear']['w'] + second['bias']['b']
