# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Fused attention equals unfused attention, on packed batches too."""

from __future__ import annotations

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import pax_fiddle
from praxis.layers import attentions, gpu_fast_attention
from praxis.layers import grouped_query_attention as gqa
from tests.praxis.layers import running
from tests.testing import nightly

_B, _T, _D, _N = 2, 6, 8, 4
_SEGMENTS = jnp.array([[1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 0]])
_FUSED = gpu_fast_attention.GpuCudnnFusedDotProductAttention
_FUSED_GQA = gpu_fast_attention.GpuCudnnFusedGroupedQueryAttention
_DPA = {'input_dim': _D, 'hidden_dim': _D, 'num_heads': _N}
_GQA = {
  'input_dim': _D,
  'dim_per_head': 2,
  'num_heads': _N,
  'num_kv_heads': 2,
  'atten_temp': 2.0,
}


def _both(fused_class, fields, mask, **kwargs):
  """Returns outputs and gradients of the plain and of the fused attention."""
  x = running.normal(_B, _T, _D)
  plain_class = fused_class.__bases__[0]
  plain, variables = running.build(
    pax_fiddle.Config(plain_class, **fields), x, x, x, mask
  )
  fused = pax_fiddle.Config(
    fused_class, name='fused', **fields, **kwargs
  ).Instantiate()

  def result(layer, params):
    def loss(params):
      out, probs = layer.apply({'params': params}, x, x, x, mask)
      return jnp.sum(jnp.square(out)), (out, probs)

    (_, (out, probs)), grads = jax.value_and_grad(loss, has_aux=True)(params)
    return out, probs, grads

  run = running.jit(lambda p: (result(plain, p), result(fused, p)))
  (want, _, want_grads), (out, probs, grads) = run(variables['params'])
  assert probs is None
  np.testing.assert_allclose(out, want, atol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), grads, want_grads
  )
  return out


@pytest.mark.parametrize('is_causal', [True, *nightly.cases(False)])
def test_packed_examples_do_not_see_each_other(is_causal):
  mask = attentions.causal_segment_mask(_SEGMENTS)
  fields = {
    **_DPA,
    'scale_logits_by_head_dims': True,
    'relative_bias_tpl': pax_fiddle.Config(attentions.RelativeBias),
  }
  _both(_FUSED, fields, mask, is_causal=is_causal)


def test_padded_keys_and_rows_that_see_nothing():
  paddings = jnp.array([[0, 0, 0, 0, 1, 1], [1] * 6])
  mask = attentions.convert_paddings_to_mask(paddings)
  fields = {**_DPA, 'zero_fully_masked': True, 'use_bias': False}
  out = _both(_FUSED, fields, mask)
  np.testing.assert_array_equal(out[1], 0.0)


@pytest.mark.parametrize(
  'mask', [attentions.causal_segment_mask, gqa.attention_mask]
)
def test_grouped_heads_honour_the_mask(mask):
  _both(_FUSED_GQA, _GQA, mask(_SEGMENTS), is_causal=True)


def test_is_causal_hides_what_the_mask_shows():
  x = running.normal(_B, _T, _D)
  shown = jnp.zeros((1, 1, _T, _T))
  config = pax_fiddle.Config(_FUSED, is_causal=True, **_DPA)
  layer, variables = running.build(config, x, x, x, shown)
  got, _ = running.run(layer, variables, x, x, x, shown)
  want, _ = running.run(layer, variables, x, x, x, attentions.causal_mask(x))
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_cudnn_is_chosen_where_there_is_a_gpu():
  x = jnp.zeros((_B, _T, _D), jnp.bfloat16)
  mask = attentions.causal_segment_mask(_SEGMENTS)
  calls = []

  def kernel(query, key, value, **kwargs):
    calls.append(kwargs)
    return query

  def forward(**kwargs):
    cfg = pax_fiddle.Config(_FUSED, name='fused', **_DPA, **kwargs)
    layer = cfg.Instantiate()
    jax.eval_shape(
      lambda: layer.init_with_output(jax.random.key(0), x, x, x, mask)
    )

  half = {'fprop_dtype': jnp.bfloat16}
  with mock.patch.object(jax.nn, 'dot_product_attention', kernel):
    forward(**half)
    with mock.patch.object(jax, 'default_backend', lambda: 'gpu'):
      forward(**half)
      forward(**half, implementation='xla')
      with pytest.raises(ValueError, match='bfloat16 or float16, got float32'):
        forward()
  chosen = [call['implementation'] for call in calls]
  assert chosen == ['xla', 'cudnn', 'xla']
  assert {call['mask'].shape for call in calls} == {(_B, 1, _T, _T)}


@pytest.mark.parametrize(
  'cls, kwargs, message',
  [
    (_FUSED, {'implementation': 'cudnn'}, "NVIDIA GPU, got the backend 'cpu'"),
    (_FUSED, {'implementation': 'triton'}, "'cudnn', 'xla' or None, got"),
    (_FUSED, {'atten_logit_cap': 5.0}, 'use DotProductAttention'),
    (_FUSED, {'attention_extra_logit': 0.0}, 'use DotProductAttention'),
    (_FUSED, {'use_attention_sinks': True}, 'use DotProductAttention'),
    (_FUSED, {'atten_dropout_prob': 0.1}, 'must be 0 in training'),
    (_FUSED_GQA, {'atten_logit_cap': 5.0}, 'use GroupedQueryAttention'),
    (_FUSED_GQA, {'atten_dropout_prob': 0.1}, 'use GroupedQueryAttention'),
  ],
)
def test_what_a_fused_kernel_cannot_do_is_refused(cls, kwargs, message):
  x = jnp.zeros((_B, _T, _D))
  fields = _GQA if cls is _FUSED_GQA else _DPA
  with pytest.raises(ValueError, match=message):
    layer = pax_fiddle.Config(
      cls, name='fused', **fields, **kwargs
    ).Instantiate()
    layer.abstract_init_with_metadata(x, x, x, attentions.causal_mask(x))
