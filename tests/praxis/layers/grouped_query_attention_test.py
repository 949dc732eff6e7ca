# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Grouped-query attention against numpy, and step by step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import attentions
from praxis.layers import grouped_query_attention as gqa
from tests.praxis.layers import running
from tests.testing import nightly, numpy_layers

_B, _T, _D, _N, _H = 2, 5, 6, 4, 4
_SEGMENTS = jnp.array([[1, 1, 2, 2, 2], [1, 1, 1, 1, 0]])
_POSITIONS = jnp.array([[0, 1, 0, 1, 2], [0, 1, 2, 3, 0]])
_CACHE = base_layer.DECODE_CACHE


def _config(**kwargs):
  fields = {'input_dim': _D, 'dim_per_head': _H, 'num_heads': _N, **kwargs}
  return gqa.GroupedQueryAttention.config(**fields)


def _reference(params, x, hidden, o):
  p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
  heads = []
  for name in ('query', 'key', 'value'):
    w = p[name]['w'].reshape(_D, -1, _H)
    b = p[name]['b'].reshape(-1, _H) if 'b' in p[name] else 0.0
    heads.append(np.einsum('btd,dnh->btnh', x, w) + b)
  q, k, v = heads
  if 'rope_min_max_timescales' in o:
    q, k = (
      numpy_layers.rotate(q, _POSITIONS),
      numpy_layers.rotate(k, _POSITIONS),
    )
  k, v = (np.repeat(y, _N // y.shape[2], axis=2) for y in (k, v))
  logits = np.einsum('btnh,bsnh->bnts', q, k) * _H**-0.5
  logits /= o.get('atten_temp', 1.0)
  if cap := o.get('atten_logit_cap'):
    logits = cap * np.tanh(logits / cap)
  exps = np.exp(np.where(hidden, -1e30, logits))
  probs = exps / exps.sum(-1, keepdims=True)
  encoded = np.einsum('bnts,bsnh->btnh', probs, v)
  out = np.einsum('btnh,dnh->btd', encoded, p['post']['w'])
  return out + p['post'].get('b', 0.0), probs


_ROPE = {'rope_min_max_timescales': (1, 10_000)}


_OPTIONS = [
  ({'num_kv_heads': 1}, (_D, _H)),
  ({'num_kv_heads': 2, 'atten_temp': 2.0, **_ROPE}, (_D, 2, _H)),
  (
    {'num_kv_heads': 4, 'atten_logit_cap': 1.5, 'use_bias': False},
    (_D, 4, _H),
  ),
]


@pytest.mark.parametrize(
  ('options', 'shape', 'additive'),
  [
    *((*options, bool(i % 2)) for i, options in enumerate(_OPTIONS)),
    *nightly.cases(
      *((*options, not i % 2) for i, options in enumerate(_OPTIONS))
    ),
  ],
)
def test_attention(options, shape, additive):
  x = running.normal(_B, _T, _D)
  hidden = gqa.attention_mask(_SEGMENTS)
  mask = attentions.causal_segment_mask(_SEGMENTS) if additive else hidden
  layer, variables = running.build(_config(**options), x, x, x, mask)
  assert variables['params']['key']['w'].shape == shape
  pos = _POSITIONS
  out, probs = running.run(layer, variables, x, x, x, mask, pos, pos)
  want = _reference(variables['params'], np.asarray(x), hidden, options)
  np.testing.assert_allclose(out, want[0], atol=1e-5)
  assert probs.shape == (
    _B,
    shape[1] if len(shape) > 2 else 1,
    *probs.shape[2:],
  )
  np.testing.assert_allclose(probs.reshape(_B, _N, _T, _T), want[1], atol=1e-5)


@pytest.mark.parametrize('options', [{}, {'num_kv_heads': 2, **_ROPE}])
def test_steps_equal_one_pass(options):
  x = running.normal(_B, _T, _D)
  mask = gqa.causal_mask(_T)
  layer, variables = running.build(_config(**options), x, x, x, mask)

  step = running.attention_step(layer, variables)

  @running.jit
  def both(x):
    (want, _), cache = layer.apply(variables, x, x, x, mask, mutable=[_CACHE])
    empty = jax.tree.map(lambda c: jnp.full_like(c, 9.0), cache)
    steps = (jnp.swapaxes(x, 0, 1), jnp.arange(_T), jnp.moveaxis(mask, 2, 0))
    last, got = jax.lax.scan(step, empty, steps)
    # Two samples of each example, two steps at once.
    run = layer.apply(
      {**variables, **cache},
      jnp.repeat(x[:, 2:4], 2, axis=0),
      atten_mask=mask[:, :, 2:4],
      time_step=2,
      segment_pos=None,
      is_cross_attention=True,
      method='extend_step',
    )
    return want, jnp.swapaxes(got, 0, 1), cache, last, run

  want, got, cache, last, run = both(x)
  np.testing.assert_allclose(got, want, atol=1e-5)
  np.testing.assert_allclose(run, np.repeat(want[:, 2:4], 2, 0), atol=1e-5)
  assert set(cache[_CACHE]) == {'key_state', 'value_state'}
  assert cache[_CACHE]['key_state'].shape == (
    _B,
    _T,
    options.get('num_kv_heads', 1),
    _H,
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), last, cache
  )


def test_gradient_of_the_values():
  """The output is linear in the values: its gradient is by hand."""
  x, mask = running.normal(_B, _T, _D), gqa.attention_mask(_SEGMENTS)
  config = _config(num_kv_heads=2, use_bias=False)
  layer, variables = running.build(config, x, x, x, mask)
  weights = running.normal(_B, _T, _D, seed=3)

  @running.jit
  def gradient(params):
    loss = lambda params: jnp.sum(
      weights * layer.apply({'params': params}, x, x, x, mask)[0]
    )
    probs = layer.apply({'params': params}, x, x, x, mask)[1]
    return jax.grad(loss)(params)['value']['w'], probs

  got, probs = gradient(variables['params'])
  post = variables['params']['post']['w'].reshape(_D, 2, 2, _H)
  want = np.einsum('bkgts,bsd,btm,mkgh->dkh', probs, x, weights, post)
  np.testing.assert_allclose(got, want, atol=1e-4)


def test_bf16_keeps_the_softmax_in_float32():
  x, mask = running.normal(_B, _T, _D), gqa.causal_mask(_T)
  config = _config(num_kv_heads=2, **_ROPE)
  layer, variables = running.build(config, x, x, x, mask)
  half = config.set(name='half', fprop_dtype=jnp.bfloat16).Instantiate()
  x_half = x.astype(jnp.bfloat16)
  want, _ = running.run(layer, variables, x, x, x, mask)
  out, _ = running.run(half, variables, x_half, x_half, x_half, mask)
  assert out.dtype == jnp.bfloat16
  np.testing.assert_allclose(out.astype(jnp.float32), want, atol=0.05)


def test_dropout_keeps_the_mean():
  x = jnp.ones((40, 50))
  key = jax.random.key(0)
  dropped = gqa.apply_dropout(x, key, 0.25)
  assert set(np.unique(dropped)) == {0.0, np.float32(1 / 0.75)}
  np.testing.assert_allclose(dropped.mean(), 1.0, atol=0.05)
  shared = gqa.apply_dropout(x, key, 0.25, broadcast_dims=(0,))
  np.testing.assert_array_equal(shared, np.repeat(shared[:1], 40, 0))
  np.testing.assert_array_equal(gqa.apply_dropout(x, key, 0.0), x)


def test_masks():
  paddings = jnp.array([[0.0, 1.0]])
  assert gqa.padding_mask(paddings).tolist() == [[[[0.0, 1.0]]]]
  assert gqa.causal_mask(2).tolist() == [[[[False, True], [False, False]]]]
  other = gqa.segment_mask(jnp.array([[1, 2]]), jnp.array([[2, 2, 1]]))
  assert other.tolist() == [[[[True, True, False], [False, False, True]]]]


@pytest.mark.parametrize(
  'kwargs, message',
  [
    ({'input_dim': 0}, 'input_dim must be positive, got 0'),
    ({'dim_per_head': 0}, 'dim_per_head must be positive, got 0'),
    ({'num_kv_heads': 3}, 'must divide num_heads=4, got 3'),
    ({'dim_per_head': 3, **_ROPE}, 'must be even'),
  ],
)
def test_bad_settings_are_refused(kwargs, message):
  with pytest.raises(ValueError, match=message):
    layer = _config(name='gqa', **kwargs).Instantiate()
    x = jnp.zeros((1, _T, _D))
    layer.abstract_init_with_metadata(x, x, x, gqa.causal_mask(_T))
