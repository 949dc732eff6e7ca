# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Multi-query attention against numpy with keys repeated per head."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import attentions, normalizations
from praxis.layers import multi_query_attention as mqa
from praxis.layers.attentions import segments
from tests.praxis.layers import running
from tests.testing import numpy_layers

_B, _T, _D, _N, _H = 2, 6, 8, 4, 2
_NORM = pax_fiddle.Config(normalizations.RmsNorm)
_SEGMENTS = jnp.array([[1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 0]])


def _config(**kwargs):
  fields = {'input_dim': _D, 'hidden_dim': _D, 'num_heads': _N, **kwargs}
  return mqa.MultiQueryDotProductAttention.config(**fields)


def _mask(causal=True):
  return (
    attentions.causal_segment_mask if causal else attentions.segment_mask
  )(_SEGMENTS)


def _reference(params, x, mask, o):
  p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
  if o.get('use_keys_as_values'):
    assert 'value' not in p
    p['value'] = p['key']
  bias = lambda part: part.get('b', 0.0)
  q = np.einsum('btd,dnh->btnh', x, p['query']['w']) + bias(p['query'])
  if o.get('num_kv_heads', 1) == 1:
    k, v = (
      (x @ p[name]['w'] + bias(p[name]))[:, :, None]
      for name in ('key', 'value')
    )
  else:
    k, v = (
      np.einsum('btd,dkh->btkh', x, p[name]['w']) + bias(p[name])
      for name in ('key', 'value')
    )
  if o.get('ln_all_heads'):
    q, k = (
      numpy_layers.norm_all_heads(y, p[f'layer_norm_{name}']['scale'])
      for y, name in ((q, 'q'), (k, 'k'))
    )
  if 'value_ln_tpl' in o:
    v = v / np.sqrt(np.mean(v**2, -1, keepdims=True) + 1e-6)
  k, v = (np.repeat(y, _N // y.shape[2], axis=2) for y in (k, v))
  q = q * np.asarray(o.get('query_factor', 1.0))[..., None, None]
  if o.get('internal_enable_query_scale', True):
    q = q * q.shape[-1] ** -0.5
  logits = np.einsum('btnh,bsnh->bnts', q, k)
  if 'relative_bias_tpl' in o:
    distance = np.arange(_T)[:, None] - np.arange(_T)
    logits += p['relative_bias']['wrb'][:, np.clip(distance, 0, 15)]
  if cap := o.get('atten_logit_cap'):
    logits = cap * np.tanh(logits / cap)
  hidden = np.broadcast_to(np.asarray(mask) < 0, logits.shape).copy()
  if window := o.get('local_window_size'):
    distance = np.arange(_T)[:, None] - np.arange(_T)
    hidden |= (distance > window[0]) | (-distance > window[1])
  exps = np.exp(np.where(hidden, -1e30, logits))
  total = exps.sum(-1, keepdims=True)
  if (extra := o.get('attention_extra_logit')) is not None:
    total = total + np.exp(extra)
  encoded = np.einsum('bnts,bsnh->btnh', exps / total, v)
  if o.get('use_output_gate'):
    gate = np.einsum('btd,dnh->btnh', x, p['output_gate']['w'])
    encoded /= 1 + np.exp(-gate - bias(p['output_gate']))
  out = np.einsum('btnh,dnh->btd', encoded, p['post']['w'])
  return out + bias(p['post']), exps / total


_OPTIONS = {
  'one': {},
  'two': {'num_kv_heads': 2, 'use_bias': False, 'atten_logit_cap': 1.5},
  'all': {'num_kv_heads': 4, 'internal_enable_query_scale': False},
  'window': {'num_kv_heads': 2, 'local_window_size': (2, 1)},
  'norms_one': {'ln_tpl': _NORM, 'ln_all_heads': True},
  'norms_two': {'ln_tpl': _NORM, 'ln_all_heads': True, 'num_kv_heads': 2},
  'gate': {'num_kv_heads': 2, 'use_output_gate': True},
  'values_are_keys': {
    'num_kv_heads': 2,
    'use_keys_as_values': True,
    'value_ln_tpl': pax_fiddle.Config(normalizations.RmsNormNoScale),
    'ln_tpl': _NORM,
    'ln_all_heads': True,
  },
  'bias': {
    'num_kv_heads': 2,
    'relative_bias_tpl': pax_fiddle.Config(attentions.RelativeBias),
    'attention_extra_logit': 0.5,
  },
}


@pytest.mark.parametrize('name', _OPTIONS)
def test_attention(name):
  options = _OPTIONS[name]
  x, mask = running.normal(_B, _T, _D), _mask()
  layer, variables = running.build(_config(**options), x, x, x, mask)
  out, probs = running.jit(lambda x: layer.apply(variables, x, x, x, mask))(x)
  want = _reference(variables['params'], np.asarray(x), mask, options)
  np.testing.assert_allclose(probs, want[1], atol=1e-5)
  np.testing.assert_allclose(out, want[0], atol=1e-5)


@pytest.mark.parametrize(
  'options, causal',
  [
    ({'attention_extra_logit': 0.5}, False),
    ({'num_kv_heads': 2, 'local_window_size': (1, 1)}, False),
    (_OPTIONS['bias'], True),
  ],
)
def test_parts_of_the_queries_give_the_same(options, causal):
  x, mask = running.normal(_B, _T, _D), _mask(causal)
  config = _config(chunked_attn_num_seq_split=3, **options)
  layer, variables = running.build(config, x, x, x, mask)
  out, probs = running.run(layer, variables, x, x, x, mask)
  assert probs is None
  want, _ = _reference(variables['params'], np.asarray(x), mask, options)
  np.testing.assert_allclose(out, want, atol=1e-5)


@pytest.mark.parametrize('has_segment_ids', [False, True])
def test_chunks_and_temperatures_of_packed_segments(has_segment_ids):
  positions = np.array([[0, 1, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0]])
  mask = _mask()
  if has_segment_ids:
    mask = segments.SegmentMask(_SEGMENTS, True, np.dtype('float32'))
  config = _config(
    num_kv_heads=2,
    attention_chunk_size=3,
    internal_enable_query_scale=False,
    query_temperature_tpl=pax_fiddle.Config(
      attentions.QueryTemperature, log_scale=0.5, interval=2
    ),
  )
  x = running.normal(_B, _T, _D)
  pos = jnp.asarray(positions)
  layer, variables = running.build(config, x, x, x, mask, pos, pos)
  out, probs = running.run(layer, variables, x, x, x, mask, pos, pos)
  hidden = np.full((_B, 1, _T, _T), -1.0)
  for b, t, s in np.ndindex(_B, _T, _T):
    is_seen = _SEGMENTS[b, s] == _SEGMENTS[b, t] and s <= t
    if is_seen and positions[b, s] // 3 == positions[b, t] // 3:
      hidden[b, 0, t, s] = 0.0
  want = _reference(
    variables['params'],
    np.asarray(x),
    hidden,
    {
      'num_kv_heads': 2,
      'internal_enable_query_scale': False,
      'query_factor': 1 + 0.5 * np.log(1 + (positions + 1) // 2),
    },
  )
  np.testing.assert_allclose(probs, want[1], atol=1e-5)
  np.testing.assert_allclose(out, want[0], atol=1e-5)


def test_one_chunk_is_causal():
  x = running.normal(_B, _T, _D)
  layer, variables = running.build(
    _config(attention_chunk_size=_T), x, x, x, _mask(causal=False)
  )
  out, _ = running.run(layer, variables, x, x, x, _mask(causal=False))
  want, _ = _reference(variables['params'], np.asarray(x), _mask(), {})
  np.testing.assert_allclose(out, want, atol=1e-5)


def test_gradients_of_shared_heads_add_up():
  x, mask = running.normal(_B, _T, _D), _mask()
  layer, variables = running.build(_config(num_kv_heads=2), x, x, x, mask)
  full = _config(num_kv_heads=4).set(name='full').Instantiate()
  params = variables['params']
  repeated = dict(params)
  for name in ('key', 'value'):
    repeated[name] = {
      'w': jnp.repeat(params[name]['w'], 2, axis=1),
      'b': jnp.repeat(params[name]['b'], 2, axis=0),
    }

  @running.jit
  def gradients(params, repeated):
    loss = lambda layer: (
      lambda params: jnp.sum(
        jnp.square(layer.apply({'params': params}, x, x, x, mask)[0])
      )
    )
    return jax.grad(loss(layer))(params), jax.grad(loss(full))(repeated)

  got, want = gradients(params, repeated)
  for name in ('key', 'value'):
    w = want[name]['w'].reshape(_D, 2, 2, _H).sum(2)
    np.testing.assert_allclose(got[name]['w'], w, atol=1e-4)
    b = want[name]['b'].reshape(2, 2, _H).sum(1)
    np.testing.assert_allclose(got[name]['b'], b, atol=1e-4)
  for name in ('query', 'post'):
    np.testing.assert_allclose(got[name]['w'], want[name]['w'], atol=1e-4)


def test_variables_and_their_initial_values():
  x = jnp.zeros((_B, _T, _D))
  config = _config(internal_gshard_gaussian_init=True, dim_per_head=3)
  config.weight_split_dims_mapping.proj = ['data', 'mdl', None]
  config.weight_split_dims_mapping.proj_headless = ['data', None]
  layer = config.set(
    name='mqa',
    ici_mesh_shape=[1, 1, 1],
    mesh_axis_names=['replica', 'data', 'mdl'],
  ).Instantiate()
  tree = layer.abstract_init_with_metadata(x, x, x, _mask())['params']
  key, query = tree['key'], tree['query']
  assert tuple(key['w'].shape) == (_D, 3) and tuple(key['b'].shape) == (3,)
  assert key['w'].tensor_split_dims_mapping == ['data', None]
  assert key['b'].tensor_split_dims_mapping == [None]
  assert query['w'].tensor_split_dims_mapping == ['data', 'mdl', None]
  assert key['w'].init == base_layer.WeightInit.Gaussian(_D**-0.5)
  assert query['w'].init == base_layer.WeightInit.Gaussian((_D * 3) ** -0.5)


def test_bf16_keeps_the_softmax_in_float32():
  x, mask = running.normal(_B, _T, _D), _mask()
  config = _config(num_kv_heads=2)
  layer, variables = running.build(config, x, x, x, mask)
  half = config.set(name='half', fprop_dtype=jnp.bfloat16).Instantiate()
  x_half = x.astype(jnp.bfloat16)
  want, _ = running.run(layer, variables, x, x, x, mask)
  out, _ = running.run(half, variables, x_half, x_half, x_half, mask)
  assert out.dtype == jnp.bfloat16
  np.testing.assert_allclose(out.astype(jnp.float32), want, atol=0.05)


@pytest.mark.parametrize(
  'kwargs, message',
  [
    ({'num_kv_heads': 3}, 'num_kv_heads must divide num_heads=4, got 3'),
    ({'num_heads': 3}, 'hidden_dim must be a multiple of num_heads=3'),
    ({'dconv_qkv': True}, 'dconv_qkv must be False'),
    ({'combine_qkv': True}, 'combine_qkv must be False'),
    ({'chunked_attn_num_seq_split': 0}, 'at least 1, got 0'),
    ({'chunked_attn_num_seq_split': 4}, 'must divide the number of queries 6'),
    ({'local_window_size': (-1, 0)}, r'got \(-1, 0\)'),
    ({'attention_chunk_size': 0}, 'at least 1, .* got 0 with None'),
    (
      {'attention_chunk_size': 2, 'local_window_size': (1, 0)},
      r'without local_window_size, got 2 with \(1, 0\)',
    ),
    (
      {
        'query_temperature_tpl': pax_fiddle.Config(
          attentions.QueryTemperature, interval=0
        )
      },
      'interval must be a number of positions, at least 1, got 0',
    ),
  ],
)
def test_bad_settings_are_refused(kwargs, message):
  x = jnp.zeros((_B, _T, _D))
  with pytest.raises(ValueError, match=message):
    layer = _config(**kwargs).set(name='mqa').Instantiate()
    layer.abstract_init_with_metadata(x, x, x, _mask())


def test_values_that_are_keys_have_no_inputs_of_their_own():
  x = jnp.zeros((_B, _T, _D))
  config = _config(use_keys_as_values=True)
  layer, variables = running.build(config, x, x, x, _mask())
  with pytest.raises(ValueError, match='value_vec must be key_vec'):
    layer.apply(variables, x, x, x + 1, _mask())
  combined = attentions.DotProductAttention.config(
    input_dim=_D,
    hidden_dim=_D,
    num_heads=_N,
    combine_qkv=True,
    use_keys_as_values=True,
    name='combined',
  ).Instantiate()
  with pytest.raises(
    ValueError, match='combine_qkv must be False with use_key'
  ):
    combined.abstract_init_with_metadata(x, x, x, _mask())


def test_chunks_are_of_one_sequence():
  x = jnp.zeros((_B, _T, _D))
  config = _config(attention_chunk_size=2)
  layer = config.set(name='mqa').Instantiate()
  with pytest.raises(ValueError, match='self-attention, got 2 with keys of'):
    layer.abstract_init_with_metadata(x, x[:, :5], x[:, :5], _mask()[..., :5])
  layer, variables = running.build(config, x, x, x, _mask())
  _, cache = layer.apply(
    variables, x, x, x, _mask(), mutable=[base_layer.DECODE_CACHE]
  )
  with pytest.raises(ValueError, match='self-attention, got 2 with keys of'):
    layer.apply(
      {**variables, **cache},
      x[:, 0],
      atten_mask=_mask()[:, :, 0],
      time_step=0,
      segment_pos=None,
      is_cross_attention=True,
      method='extend_step',
    )


def test_the_projection_to_one_head():
  config = mqa.OneHeadedAttentionProjection.config(input_dim=_D, output_dim=3)
  x = running.normal(_B, _D)
  layer, variables = running.build(config, x)
  w, b = (variables['params'][name] for name in 'wb')
  np.testing.assert_allclose(
    running.run(layer, variables, x), np.asarray(x) @ w + b, atol=1e-5
  )
  with pytest.raises(ValueError, match='must be input_dim=8, got shape'):
    layer.apply(variables, x[:, :5])
  bad = config.clone().set(name='bad')
  bad.weight_split_dims_mapping.wt = ['data']
  with pytest.raises(ValueError, match='must have 2 entries'):
    bad.Instantiate().abstract_init_with_metadata(x)


@pytest.mark.parametrize(
  ('offset', 'intervals'),
  [(0, [0, 0, 0, 1, 1, 1, 2]), (1, [0, 0, 1, 1, 1, 2, 2])],
)
def test_queries_grow_with_the_position(offset, intervals):
  config = attentions.QueryTemperature.config(
    log_scale=0.5, interval=3, offset=offset
  )
  queries = jnp.ones((1, 7, 1, 1))
  layer, variables = running.build(config, queries)
  out = running.run(layer, variables, queries)
  want = 1 + 0.5 * np.log(1 + np.asarray(intervals))
  np.testing.assert_allclose(out[0, :, 0, 0], want, rtol=1e-6)
