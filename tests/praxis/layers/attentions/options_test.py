# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Every template and option of attention has its effect."""

from __future__ import annotations

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import attentions, base_ops, embedding_softmax, stochastics
from tests.praxis.layers import running

_B, _T, _D, _N = 2, 4, 8, 2
_CACHE = [base_layer.DECODE_CACHE]


class _Doubled(base_ops.EinsumOp):
  def __call__(self, equation, *args):
    return 2.0 * super().__call__(equation, *args)


class _Scale(attentions.PerDimScale):
  pass


class _Conv(attentions.CausalDepthwiseConv1D):
  pass


class _Projection(attentions.AttentionProjection):
  pass


class _Combined(attentions.CombinedQKVProjectionLayer):
  pass


class _Dropout(stochastics.Dropout):
  pass


class _Rotary(embedding_softmax.RotaryPositionalEmbedding):
  pass


def _config(**kwargs):
  return attentions.DotProductAttention.config(
    name='atten', input_dim=_D, hidden_dim=_D, num_heads=_N, **kwargs
  )


@pytest.mark.parametrize(
  'field, template, children',
  [
    ('proj_tpl', _Projection, ['query', 'key', 'value', 'post']),
    ('combined_qkv_proj_tpl', _Combined, ['combined_qkv']),
    ('per_dim_scale_tpl', _Scale, ['per_dim_scale']),
    ('causal_depthwise_conv1d_tpl', _Conv, ['dconv_q', 'dconv_k', 'dconv_v']),
    ('rotary_position_emb_tpl', _Rotary, ['rotary_position_emb']),
    ('dropout_tpl', _Dropout, ['atten_dropout']),
  ],
)
def test_templates_make_the_children(field, template, children):
  layer = _config(
    **{field: template.config()},
    combine_qkv=field == 'combined_qkv_proj_tpl',
    dconv_qkv=True,
    dconv_kernel_size=2,
    use_rotary_position_emb=True,
    atten_dropout_prob=0.25,
  ).Instantiate()
  bound = layer.bind({}, rngs={})
  for name in children:
    assert type(getattr(bound, name)) is template
  assert bound.dconv_q.kernel_size == 2
  assert bound.atten_dropout.keep_prob == 0.75


def test_products_are_those_of_their_templates():
  x = running.normal(_B, _T, _D)
  mask = attentions.causal_mask(x)
  plain, variables = running.build(_config(use_bias=False), x, x, x, mask)
  doubled = _Doubled.config()
  layers = [
    _config(use_bias=False, **{name: doubled}).Instantiate()
    for name in ('qk_einsum_tpl', 'pv_einsum_tpl')
  ]
  wide = _config(use_bias=False, scale_logits_by_head_dims=True).Instantiate()

  @running.jit
  def results(variables):
    apply = lambda layer: layer.apply(variables, x, x, x, mask)
    return apply(plain), *(apply(layer) for layer in layers), apply(wide)

  (out, probs), (_, sharp), (twice, _), (_, flat) = results(variables)
  np.testing.assert_allclose(twice, 2 * out, atol=1e-5)
  power = lambda p, n: p**n / np.sum(p**n, -1, keepdims=True)
  probs = np.asarray(probs, np.float64)
  np.testing.assert_allclose(sharp, power(probs, 2.0), atol=1e-5)
  np.testing.assert_allclose(flat, power(probs, 0.5), atol=1e-5)


@pytest.mark.parametrize('by_head, size', [(False, 4), (True, 6)])
def test_queries_are_scaled_by_one_size_of_a_head(by_head, size):
  layer = _config(
    internal_enable_per_dim_scale=False,
    dim_per_head=6,
    scale_query_by_dim_per_head=by_head,
  ).Instantiate()
  query = running.normal(1, 1, _N, 6)
  got = layer.bind({})._scale_query(query)
  np.testing.assert_allclose(got, query * size**-0.5, rtol=1e-6)


@pytest.mark.parametrize('cast', [False, True])
def test_rotation_is_in_float32_when_not_cast(cast):
  layer = _config(
    use_rotary_position_emb=True,
    cast_rotary_position_emb=cast,
    fprop_dtype=jnp.bfloat16,
  ).Instantiate()
  x = jnp.zeros((_B, _T, _D), jnp.bfloat16)
  mask = attentions.causal_mask(x)
  _, cache = jax.eval_shape(
    lambda: layer.init_with_output(jax.random.key(0), x, x, x, mask)
  )
  states = cache[base_layer.DECODE_CACHE]
  assert states['key_state'].dtype == jnp.bfloat16
  want = jnp.bfloat16 if cast else jnp.float32
  assert states['key_post_rotary_pos_emb'].dtype == want


@pytest.mark.parametrize('shard', [False, True])
def test_projections_of_a_step_are_sharded_on_demand(shard):
  config = _config(decoding_maybe_shard_projections=shard, use_bias=False)
  config.activation_split_dims_mapping.blnh = ['data', None, 'mdl', None]
  layer = config.Instantiate()
  x = jnp.zeros((_B, _T, _D))
  mask = attentions.causal_mask(x)
  seen = []

  def note(x, split, axis_names, *args):
    seen.append((x.ndim, list(split) if split else split))
    return x

  def step():
    _, variables = layer.init_with_output(jax.random.key(0), x, x, x, mask)
    seen.clear()
    return layer.apply(
      variables,
      x[:, 0],
      atten_mask=mask[:, :, 0],
      time_step=0,
      segment_pos=None,
      method='extend_step',
      mutable=_CACHE,
    )

  with mock.patch.object(base_layer, 'maybe_shard', note):
    jax.eval_shape(step)
  # Of the output of the heads; before it of query, key and value.
  heads = (4, ['data', None, 'mdl', None])
  assert seen.count(heads) == (4 if shard else 1)
