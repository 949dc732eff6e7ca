# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Multi-head latent attention against numpy and against its decoding steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import attentions
from praxis.layers import multi_head_latent_attention as mla
from praxis.layers.attentions import segments
from praxis.layers.quantization import attentions as quantized
from tests.praxis.layers import running
from tests.testing import nightly

_B, _T, _D, _N = 2, 6, 8, 4
_NOPE, _ROPE, _V, _RANK = 3, 4, 2, 5
_SEGMENTS = jnp.array([[1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 0]])
_POSITIONS = jnp.array([[0, 1, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0]])


def _config(**kwargs):
  fields = {
    'input_dim': _D,
    'hidden_dim': _D,
    'num_heads': _N,
    'kv_lora_rank': _RANK,
    'qk_nope_head_dim': _NOPE,
    'qk_rope_head_dim': _ROPE,
    'v_head_dim': _V,
    **kwargs,
  }
  return mla.MultiHeadLatentAttention.config(**fields)


def _run(layer, variables, x, mask, pos=None):
  def attend(layer, x, mask, pos):
    return layer(x, x, x, mask, pos, pos)

  return running.run(layer, variables, x, mask, pos, method=attend)


def _rms_norm(x, params):
  rms = np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6)
  return x / rms * params['scale']


def _rotate(x, pos):
  half = x.shape[-1] // 2
  angle = pos[..., None] / 1e4 ** (np.arange(half) / half)
  while angle.ndim < x.ndim:
    angle = angle[:, :, None]
  a, b = x[..., :half], x[..., half:]
  sin, cos = np.sin(angle), np.cos(angle)
  return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _reference(params, x, mask, pos):
  p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
  linear = lambda name, y: y @ p[name]['w'] + p[name].get('b', 0.0)
  heads = lambda name, y: np.einsum('btd,dnh->btnh', y, p[name]['w'])
  c_q = x
  if 'query_down' in p:
    c_q = _rms_norm(linear('query_down', x), p['query_norm'])
  c_kv = _rms_norm(linear('key_value_down', x), p['key_value_norm'])
  q_rotated = _rotate(heads('query_rotary', c_q), pos)
  k_rotated = _rotate(linear('key_rotary', x), pos)
  logits = np.einsum('btnh,bsnh->bnts', heads('query', c_q), heads('key', c_kv))
  logits += np.einsum('btnr,bsr->bnts', q_rotated, k_rotated)
  logits *= (_NOPE + _ROPE) ** -0.5
  exps = np.exp(np.where(np.asarray(mask) < 0, -1e30, logits))
  probs = exps / exps.sum(-1, keepdims=True)
  encoded = np.einsum('bnts,bsnv->btnv', probs, heads('value', c_kv))
  out = np.einsum('btnv,dnv->btd', encoded, p['post']['w'])
  return out + p['post'].get('b', 0.0), probs


_OPTIONS = {'latent queries': {'q_lora_rank': 6}, 'biases': {'use_bias': True}}


@pytest.mark.parametrize('name', _OPTIONS)
def test_attention(name):
  x, mask = (
    running.normal(_B, _T, _D),
    attentions.causal_segment_mask(_SEGMENTS),
  )
  layer, variables = running.build(_config(**_OPTIONS[name]), x, x, x, mask)
  out, probs = _run(layer, variables, x, mask, _POSITIONS)
  want = _reference(
    variables['params'], np.asarray(x), mask, np.asarray(_POSITIONS)
  )
  np.testing.assert_allclose(probs, want[1], atol=1e-5)
  np.testing.assert_allclose(out, want[0], atol=1e-5)


_LORA = pax_fiddle.Config(quantized.AttentionProjectionLoRA, lora_rank=2)


def test_the_mask_is_written_as_other_attention_does():
  x = running.normal(_B, _T, _D)
  args = x, x, x, attentions.causal_mask(x)
  layer, variables = running.build(_config(attention_mask_summary=True), *args)
  run = lambda variables: layer.apply(
    variables, *args, mutable=[base_layer.SUMMARIES]
  )
  _, updates = running.jit(run)(variables)
  assert any('attention_mask' in x for x in updates[base_layer.SUMMARIES])


@pytest.mark.parametrize(
  'fields',
  [
    {'q_lora_rank': 6, 'proj_tpl': _LORA},
    *nightly.cases({'q_lora_rank': 6}, {'proj_tpl': _LORA}),
  ],
  ids=['projected latents', 'latents', 'projected'],
)
def test_steps_give_what_the_sequence_does(fields):
  x = running.normal(_B, _T, _D)
  args = x, x, x, attentions.causal_mask(x)
  layer, variables = running.build(_config(**fields), *args)
  want, _ = _run(layer, variables, x, args[3])
  prompt = jnp.zeros_like(x).at[:, :2].set(x[:, :2])
  cached = [base_layer.DECODE_CACHE]

  @running.jit
  def decode(variables):
    _, cache = layer.apply(variables, *(prompt,) * 3, args[3], mutable=cached)
    step = running.attention_step(layer, variables)
    outputs = []
    # Two steps at once, then one by one.
    for first, num_steps in ((2, 2), (4, 1), (5, 1)):
      steps = slice(first, first + num_steps)
      inputs = x[:, first] if num_steps == 1 else x[:, steps]
      mask = args[3][:, :, first] if num_steps == 1 else args[3][:, :, steps]
      cache, out = step(cache, (inputs, first, mask))
      outputs.append(out.reshape(_B, num_steps, _D))
    return cache, jnp.concatenate(outputs, axis=1)

  cache, out = decode(variables)
  np.testing.assert_allclose(out, want[:, 2:], atol=1e-5)
  # Neither heads nor values are cached.
  shapes = [a.shape for a in jax.tree.leaves(cache)]
  assert shapes == [(_B, _T, _RANK + _ROPE)]


def test_samples_may_share_the_cache_of_another_sequence():
  x, queries = running.normal(_B, _T, _D), running.normal(2 * _B, _D, seed=3)
  args = x, x, x, attentions.causal_mask(x)
  layer, variables = running.build(_config(), *args)

  @running.jit
  def attend(variables):
    cached = [base_layer.DECODE_CACHE]
    _, cache = layer.apply(variables, *args, mutable=cached)
    step = lambda cache: layer.apply(
      {**variables, **cache},
      queries,
      atten_mask=jnp.zeros((2 * _B, 1, _T)),
      time_step=_T,
      segment_pos=None,
      is_cross_attention=True,
      method='extend_step',
    )
    of_each = jax.tree.map(lambda a: jnp.repeat(a, 2, axis=0), cache)
    return step(cache), step(of_each)

  got, want = attend(variables)
  np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize(
  'kernel', ['splash', 'native', *nightly.cases('cudnn')]
)
def test_kernels_give_what_einsum_does(kernel):
  length = 128
  config = _config(qk_nope_head_dim=48, qk_rope_head_dim=16, v_head_dim=32)
  if kernel == 'cudnn':
    config.fprop_dtype = jnp.bfloat16
  x = running.normal(_B, length, _D).astype(config.fprop_dtype)
  ids = jnp.ones((_B, length), jnp.int32)
  mask = segments.SegmentMask(ids, True, np.dtype(np.float32), is_packed=False)
  args = x, x, x, mask
  einsum, variables = running.build(
    config.clone().set(atten_implementation='einsum'), *args
  )
  fused = config.set(name='fused', atten_implementation=kernel).Instantiate()

  def loss_of(layer):
    def loss(variables):
      out, probs = layer.apply(variables, *args)
      return jnp.sum(jnp.sin(3 * out.astype(jnp.float32))), (out, probs)

    return jax.value_and_grad(loss, has_aux=True)

  @running.jit
  def both(variables):
    return loss_of(fused)(variables), loss_of(einsum)(variables)

  ((_, (got, probs)), got_grad), ((_, (want, _)), want_grad) = both(variables)
  assert probs is None
  tolerance = 5e-2 if kernel == 'cudnn' else 1e-4
  for a, b in zip(
    jax.tree.leaves((got, got_grad)),
    jax.tree.leaves((want, want_grad)),
    strict=True,
  ):
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    assert np.max(np.abs(a - b)) <= tolerance * np.max(np.abs(b))


def test_weights_are_sharded_and_have_their_initial_values():
  x = jnp.zeros((_B, _T, _D))
  config = _config(internal_gshard_gaussian_init=True, q_lora_rank=6)
  config.weight_split_dims_mapping.set(
    proj=['data', 'mdl', None], proj_headless=['data', None]
  )
  layer = config.set(
    name='mla',
    ici_mesh_shape=[1, 1, 1],
    mesh_axis_names=['replica', 'data', 'mdl'],
  ).Instantiate()
  mask = attentions.causal_mask(x)
  tree = layer.abstract_init_with_metadata(x, x, x, mask)['params']
  for name, shape, split, fan_in in (
    ('query_down', [_D, 6], ['data', None], _D),
    ('query_rotary', [6, _N, _ROPE], ['data', 'mdl', None], 6),
    ('key_value_down', [_D, _RANK], ['data', None], _D),
    ('key_rotary', [_D, _ROPE], ['data', None], _D),
    ('value', [_RANK, _N, _V], ['data', 'mdl', None], _RANK),
    ('post', [_D, _N, _V], ['data', 'mdl', None], _N * _V),
  ):
    weight = tree[name]['w']
    assert list(weight.shape) == shape
    assert weight.tensor_split_dims_mapping == split
    assert weight.init == base_layer.WeightInit.Gaussian(fan_in**-0.5), name


@pytest.mark.parametrize(
  'kwargs, message',
  [
    ({'kv_lora_rank': 0}, 'kv_lora_rank must be positive, got 0'),
    ({'dim_per_head': 2}, 'dim_per_head must be None or 7 in MultiHeadLatent'),
    ({'ln_tpl': pax_fiddle.Config(base_layer.BaseLayer)}, 'ln_tpl must be'),
    ({'combine_qkv': True}, 'combine_qkv must be False'),
    ({'use_output_gate': True}, 'use_output_gate must be False'),
    ({'use_keys_as_values': True}, 'use_keys_as_values must be False'),
    (
      {'value_ln_tpl': pax_fiddle.Config(base_layer.BaseLayer)},
      'value_ln_tpl must be None',
    ),
  ],
)
def test_bad_settings_are_refused(kwargs, message):
  x = jnp.zeros((_B, _T, _D))
  with pytest.raises(ValueError, match=message):
    layer = _config(**kwargs).set(name='mla').Instantiate()
    layer.abstract_init_with_metadata(x, x, x, attentions.causal_mask(x))


def test_keys_and_values_have_one_input():
  x = running.normal(_B, _T, _D)
  args = x, x, x, attentions.causal_mask(x)
  layer, variables = running.build(_config(), *args)
  with pytest.raises(ValueError, match='value_vec must be key_vec'):
    layer.apply(variables, x, x, 2 * x, args[3])
