# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Attention to keys and values of another layer, against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import (
  attentions,
  multi_query_attention,
  normalizations,
  shared_key_attention,
)
from praxis.layers.attentions import attention_core
from tests.praxis.layers import running
from tests.testing import nightly, numpy_layers

_B, _T, _D, _N, _H = 2, 6, 8, 4, 2
_CACHE = [base_layer.DECODE_CACHE]
_OPTIONS = {
  'use_rotary_position_emb': True,
  'consolidate_rope_key_state': True,
  'ln_tpl': pax_fiddle.Config(normalizations.RmsNorm, direct_scale=True),
  'ln_before_rotary': True,
}


def _config(cls, **fields):
  return cls.config(
    input_dim=_D, num_heads=_N, dim_per_head=_H, **{**_OPTIONS, **fields}
  )


def _source(**fields):
  return _config(shared_key_attention.KeySourceAttention, **fields)


def _shared(**fields):
  return _config(shared_key_attention.SharedKeyAttention, **fields)


def _numbers(tree):
  return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def _project(x, p, name, heads):
  weight = p[name]['w'].reshape(_D, heads, _H)
  return np.einsum('btd,dnh->btnh', x, weight) + p[name]['b'].reshape(heads, _H)


def _heads(x, p, letter, name, heads):
  """Returns queries or keys: projected, normalized, and rotated."""
  projected = _project(x, p, name, heads)
  scale = p[f'layer_norm_{letter}']['scale']
  return numpy_layers.rotate(
    numpy_layers.rms_norm(projected, scale), np.arange(_T)[None]
  )


def _attend(x, p, keys, values, window):
  query = _heads(x, p, 'q', 'query', _N) * _H**-0.5
  keys, values = (
    np.repeat(y, _N // y.shape[2], axis=2) for y in (keys, values)
  )
  distance = np.arange(_T)[:, None] - np.arange(_T)
  is_hidden = (distance < 0) | (distance > window)
  logits = np.einsum('btnh,bsnh->bnts', query, keys)
  probs = numpy_layers.softmax(np.where(is_hidden, -1e30, logits))
  encoded = np.einsum('bnts,bsnh->btnh', probs, values)
  return np.einsum('btnh,dnh->btd', encoded, p['post']['w']) + p['post']['b']


@pytest.mark.parametrize(
  ('num_kv_heads', 'window'),
  [(1, None), (2, 2), *nightly.cases((1, 2), (2, None))],
)
def test_queries_attend_to_keys_of_the_source(num_kv_heads, window):
  x, y = running.normal(_B, _T, _D), running.normal(_B, _T, _D, seed=1)
  mask = attentions.causal_mask(x)
  fields = {
    'num_kv_heads': num_kv_heads,
    'local_window_size': None if window is None else (window, 0),
  }
  source, variables = running.build(_source(**fields), x, x, x, mask)
  output, shared = running.run(source, variables, x, x, x, mask)
  p = _numbers(variables['params'])
  x, reach = np.asarray(x), _T if window is None else window
  keys = _heads(x, p, 'k', 'key', num_kv_heads)
  values = _project(x, p, 'value', num_kv_heads)
  np.testing.assert_allclose(shared.key.reshape(keys.shape), keys, atol=1e-5)
  np.testing.assert_allclose(
    shared.value.reshape(values.shape), values, atol=1e-5
  )
  np.testing.assert_allclose(
    output, _attend(x, p, keys, values, reach), atol=1e-5
  )

  layer, variables = running.build(
    _shared(**fields), y, shared, mask, method='attend', seed=2
  )
  p = _numbers(variables['params'])
  assert p.keys() == {'query', 'post', 'layer_norm_q'}
  got, _ = running.run(layer, variables, y, shared, mask, method='attend')
  want = _attend(np.asarray(y), p, keys, values, reach)
  np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize('num_kv_heads', [2, *nightly.cases(1)])
def test_steps_equal_the_whole(num_kv_heads):
  x, y = running.normal(_B, _T, _D), running.normal(_B, _T, _D, seed=1)
  mask = attentions.causal_mask(x)
  fields = {'num_kv_heads': num_kv_heads, 'local_window_size': (2, 0)}
  source, variables = running.build(_source(**fields), x, x, x, mask)
  (_, shared), cache = running.run(
    source, variables, x, x, x, mask, mutable=_CACHE
  )
  cached = running.run(
    source, {**variables, **cache}, method='cached_keys_and_values'
  )
  for got, want in zip(cached, shared, strict=True):
    np.testing.assert_array_equal(got, want)

  layer, variables = running.build(
    _shared(**fields), y, shared, mask, method='attend', seed=2
  )
  (want, _), cache = running.run(
    layer, variables, y, shared, mask, method='attend', mutable=_CACHE
  )
  assert not cache
  step = lambda x, first, mask: running.run(
    layer,
    variables,
    x,
    shared,
    atten_mask=mask,
    time_step=jnp.int32(first),
    segment_pos=None,
    method='attend_step',
  )
  got = step(y[:, 3], 3, mask[:, :, 3])
  np.testing.assert_allclose(got, want[:, 3], atol=1e-5)
  got = step(y[:, 2:5], 2, mask[:, :, 2:5])
  np.testing.assert_allclose(got, want[:, 2:5], atol=1e-5)


def test_keys_must_be_those_of_another_layer():
  x = running.normal(_B, _T, _D)
  mask = attentions.causal_mask(x)
  layer = _shared(num_kv_heads=2).set(name='layer').Instantiate()
  with pytest.raises(ValueError, match='got inputs; set key_sources'):
    layer.init(jax.random.key(0), x, x, x, mask)
  keys = attention_core.KeysAndValues(*[jnp.zeros((_B, _T, 4, _H))] * 2)
  message = r'shape \[2, 6, 2, 2\], got \[2, 6, 4, 2\]; num_kv_heads'
  with pytest.raises(ValueError, match=message):
    layer.init(jax.random.key(0), x, keys, mask, method='attend')
  bias = pax_fiddle.Config(attentions.RelativeBias)
  layer = _shared(relative_bias_tpl=bias).set(name='layer').Instantiate()
  with pytest.raises(ValueError, match='must be None .* got RelativeBias'):
    layer.init(jax.random.key(0), x, x, x, mask)


def test_a_source_attends_as_other_layers():
  x = running.normal(_B, _T, _D)
  mask = attentions.causal_mask(x)
  layer, variables = running.build(_source(), x, x, x, mask)
  other = _config(multi_query_attention.MultiQueryDotProductAttention)
  got, _ = running.run(layer, variables, x, x, x, mask)
  want, _ = running.run(other.Instantiate(), variables, x, x, x, mask)
  np.testing.assert_array_equal(got, want)
