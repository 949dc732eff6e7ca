# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Every attention layer decodes step by step as its forward pass computes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import attentions, embedding_softmax, normalizations
from praxis.layers import multi_query_attention as mqa
from tests.praxis.layers import running
from tests.testing import nightly

_B, _T, _D, _N = 2, 6, 8, 4
_CACHE = base_layer.DECODE_CACHE
_BIAS = pax_fiddle.Config(attentions.RelativeBias)
_NORM = pax_fiddle.Config(normalizations.RmsNorm)
_ROTARY = {'use_rotary_position_emb': True}
_PARTIAL = pax_fiddle.Config(
  embedding_softmax.RotaryPositionalEmbedding,
  max_timescale=10,
  rotary_dims=2,
  interleaved_pairs=True,
)
_STATES = {'key_state', 'value_state'}
_ROTATED = {'key_post_rotary_pos_emb'}
_CONVOLVED = {'query_state', 'key_post_dconv', 'value_post_dconv'}
_WINDOW = {'block_size': 3, 'left_context': 3, 'right_context': 0}
_SINKS = {'use_attention_sinks': True}
_XL = {'rel_pos_emb_dim': 6}

_FULL = attentions.DotProductAttention
_MQA = mqa.MultiQueryDotProductAttention
# Class, fields, and the names of what it caches.
_KINDS = {
  'plain': (_FULL, {}, _STATES),
  'combined_cap': (
    _FULL,
    {'combine_qkv': True, 'atten_logit_cap': 2.0, 'attention_extra_logit': 0.3},
    _STATES,
  ),
  'rotary': (_FULL, _ROTARY, _STATES | _ROTATED),
  'consolidated': (
    _FULL,
    {**_ROTARY, 'consolidate_rope_key_state': True},
    _STATES,
  ),
  'dconv': (_FULL, {'dconv_qkv': True}, _STATES | _CONVOLVED),
  'dconv_rotary': (
    _FULL,
    {'dconv_qkv': True, **_ROTARY},
    _STATES | _CONVOLVED | _ROTATED,
  ),
  'relative_bias_norm': (
    _FULL,
    {'relative_bias_tpl': _BIAS, 'ln_tpl': _NORM},
    _STATES,
  ),
  'unscaled': (
    _FULL,
    {'internal_enable_query_scale': False, 'scale_logits_by_head_dims': True},
    _STATES,
  ),
  'xl': (attentions.DotProductAttentionXL, _XL, _STATES),
  'local': (attentions.LocalSelfAttention, {**_WINDOW, **_ROTARY}, None),
  'local_simulated_bias': (
    attentions.LocalSelfAttention,
    {**_WINDOW, 'simulated': True, 'relative_bias_tpl': _BIAS},
    _STATES,
  ),
  'local_bias': (attentions.LocalSelfAttentionRelativeBias, _WINDOW, _STATES),
  'local_alibi': (attentions.LocalSelfAttentionAlibi, _WINDOW, _STATES),
  'local_xl': (attentions.LocalSelfAttentionXL, {**_WINDOW, **_XL}, _STATES),
  'mqa_rotary': (_MQA, _ROTARY, _STATES | _ROTATED),
  'mqa_norm_of_all_heads': (
    _MQA,
    {
      'num_kv_heads': 2,
      'dim_per_head': 4,
      'ln_tpl': _NORM,
      'ln_all_heads': True,
      'ln_before_rotary': True,
      'rotary_position_emb_tpl': _PARTIAL,
      'consolidate_rope_key_state': True,
      **_ROTARY,
    },
    _STATES,
  ),
  'mqa_window_bias': (
    _MQA,
    {
      'num_kv_heads': 2,
      'local_window_size': (2, 0),
      'relative_bias_tpl': _BIAS,
    },
    _STATES,
  ),
  'mqa_chunks': (
    _MQA,
    {
      'num_kv_heads': 2,
      'attention_chunk_size': 2,
      'ln_tpl': _NORM,
      'query_temperature_tpl': pax_fiddle.Config(
        attentions.QueryTemperature, interval=2
      ),
      'consolidate_rope_key_state': True,
      **_ROTARY,
    },
    _STATES,
  ),
  'mqa_values_are_keys': (
    _MQA,
    {
      'use_keys_as_values': True,
      'value_ln_tpl': pax_fiddle.Config(normalizations.RmsNormNoScale),
      'ln_tpl': _NORM,
      'ln_before_rotary': True,
      'consolidate_rope_key_state': True,
      **_ROTARY,
    },
    _STATES,
  ),
  'mqa_sinks': (_MQA, {'num_kv_heads': 2, **_SINKS}, _STATES),
  'mqa_gate': (_MQA, {'num_kv_heads': 2, 'use_output_gate': True}, _STATES),
  'mqa_window_sinks': (
    _MQA,
    {
      'num_kv_heads': 2,
      'local_window_size': (2, 0),
      **_SINKS,
    },
    _STATES,
  ),
  'mqa_chunked': (
    _MQA,
    {'num_kv_heads': 2, 'chunked_attn_num_seq_split': 3, **_ROTARY},
    None,
  ),
}


def _config(kind):
  cls, fields, _ = _KINDS[kind]
  return pax_fiddle.Config(
    cls, input_dim=_D, hidden_dim=_D, num_heads=_N, **fields
  )


# Options that other kinds have, too.
_BY_NIGHT = [
  'plain', 'rotary', 'dconv', 'unscaled', 'local_simulated_bias', 'mqa_sinks',
]  # fmt: skip


@pytest.mark.parametrize(
  'kind',
  [*(x for x in _KINDS if x not in _BY_NIGHT), *nightly.cases(*_BY_NIGHT)],
)
def test_steps_equal_one_pass(kind):
  x = running.normal(_B, _T, _D)
  mask = attentions.causal_mask(x)
  layer, variables = running.build(_config(kind), x, x, x, mask)

  step = running.attention_step(layer, variables)

  @running.jit
  def both(x):
    (want, _), cache = layer.apply(variables, x, x, x, mask, mutable=[_CACHE])
    empty = jax.tree.map(lambda c: jnp.full_like(c, 9.0), cache)
    masks = jnp.moveaxis(mask, 2, 0)
    steps = (jnp.swapaxes(x, 0, 1), jnp.arange(_T), masks)
    last, got = jax.lax.scan(step, empty, steps)
    return want, jnp.swapaxes(got, 0, 1), cache, last

  want, got, cache, last = both(x)
  np.testing.assert_allclose(got, want, atol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), last, cache
  )
  states = _KINDS[kind][2]
  assert states is None or set(cache[_CACHE]) == states


@pytest.mark.parametrize(
  'kind',
  ['xl', 'local_alibi', 'mqa_sinks', *nightly.cases('plain', 'mqa_rotary')],
)
def test_a_run_of_steps_of_several_samples(kind):
  """Two samples continue each of two prompts, two steps at once."""
  prompts, x = running.normal(_B, _T, _D), running.normal(2 * _B, 2, _D, seed=1)
  layer, variables = running.build(
    _config(kind), prompts, prompts, prompts, attentions.causal_mask(prompts)
  )
  mask = attentions.causal_mask(prompts)[:, :, 3:5]

  def cross(variables, cache, x):
    query = layer.apply(
      {**variables, **cache},
      x,
      atten_mask=mask,
      time_step=3,
      segment_pos=None,
      is_cross_attention=True,
      method='extend_step',
    )
    return query

  @running.jit
  def both(prompts, x):
    _, cache = layer.apply(
      variables,
      prompts,
      prompts,
      prompts,
      attentions.causal_mask(prompts),
      mutable=[_CACHE],
    )
    repeated = jax.tree.map(lambda c: jnp.repeat(c, 2, axis=0), cache)
    return cross(variables, cache, x), cross(variables, repeated, x)

  shared, own = both(prompts, x)
  np.testing.assert_allclose(shared, own, atol=1e-5)


def test_a_batch_that_is_no_multiple_of_the_cache():
  x = running.normal(_B, _T, _D)
  mask = attentions.causal_mask(x)
  layer, variables = running.build(_config('plain'), x, x, x, mask)
  cache = jax.eval_shape(
    lambda: layer.apply(variables, x, x, x, mask, mutable=[_CACHE])[1]
  )
  step = lambda cache, mask: layer.apply(
    {**variables, **cache},
    jnp.zeros((3, _D)),
    atten_mask=mask,
    time_step=0,
    segment_pos=None,
    is_cross_attention=True,
    method='extend_step',
  )
  with pytest.raises(ValueError, match='must be a multiple of 2, the batch of'):
    jax.eval_shape(lambda cache: step(cache, mask[:, :, 0]), cache)
  with pytest.raises(ValueError, match=r'got \[2, 1, 1, 6\]'):
    jax.eval_shape(lambda cache: step(cache, jnp.zeros((_B, 1, _T))), cache)
