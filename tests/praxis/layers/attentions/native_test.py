# SPDX-License-Identifier: Apache-2.0
"""The C++ kernel for attention against einsum, alone and in language models."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import pax_fiddle
from praxis.kernels import attention
from praxis.kernels import native as kernels
from praxis.layers import (
  attentions,
  checkpoint_policy,
  grouped_query_attention,
  multi_query_attention,
)
from praxis.layers.attentions import (
  flash,
  kernel_choice,
  kernel_inputs,
  masks,
  native,
)
from tests.praxis.layers.attentions import kernel_cases
from tests.testing import nightly

pytestmark = pytest.mark.skipif(
  not attention.has_kernel(), reason='praxis.kernels._native is not built'
)

_KernelSpec = kernel_inputs.KernelSpec
_Policy = checkpoint_policy.AutodiffCheckpointType
_SPLIT = kernel_cases.SPLIT


@pytest.mark.parametrize(
  'fields',
  [
    dict(dtype=jnp.bfloat16),
    dict(cap=2.0, num_kv_heads=2),
    dict(cap=-1.0, length=131, head_dim=20),
    dict(window=masks.ContextWindow(40, 31), is_causal=False),
    dict(extra_logit=1.5),
    *nightly.cases(dict(), dict(window=masks.ContextWindow(40, 0))),
  ],
  ids=str,
)
def test_values_and_gradients_equal_einsum(fields):
  fields = dict(fields)
  cap, window = fields.pop('cap', None), fields.pop('window', None)
  extra_logit = fields.pop('extra_logit', None)
  is_causal = fields.pop('is_causal', True)
  heads = kernel_cases.random_heads(**fields)
  ids = kernel_cases.segment_ids(heads.query.shape[1])
  mask = kernel_cases.segment_mask(ids, is_causal)
  spec = _KernelSpec(mask, window, cap, extra_logit=extra_logit)
  assert native.reason_against(heads, spec, kernel_cases.NO_MESH) is None
  got = kernel_cases.with_gradients(lambda h: flash.attend(h, spec), heads)
  want = kernel_cases.with_gradients(
    lambda h: kernel_cases.by_einsum(h, spec), heads
  )
  is_half = heads.query.dtype == jnp.bfloat16
  kernel_cases.assert_close(got, want, 2e-2 if is_half else 2e-5)


@pytest.mark.parametrize(
  ('shape', 'fields', 'reason'),
  [
    ((2, 64, 4, 64), dict(split=_SPLIT), None),
    ((3, 64, 4, 64), dict(split=_SPLIT), 'over a batch of 3'),
    ((2, 64, 3, 64), dict(split=_SPLIT), 'over 3 heads'),
    ((2, 64, 4, 64), dict(split=[None, 'mdl', None, None]), 'over the seq'),
    ((2, 64, 4, 64), dict(), 'that shards no dimension'),
    (
      (2, 64, 4, 64),
      dict(split=_SPLIT, window=masks.ContextWindow(0, 3)),
      "without the query's own position",
    ),
  ],
)
def test_reasons_against_the_kernel(shape, fields, reason):
  x = jax.ShapeDtypeStruct(shape, jnp.float32)
  mask = kernel_cases.segment_mask(jnp.zeros(shape[:2], jnp.int32))
  got = native.reason_against(
    kernel_inputs.Heads(x, x, x),
    _KernelSpec(mask, **fields),
    kernel_cases.mesh().abstract_mesh,
  )
  assert got is None if reason is None else reason in got


@pytest.mark.parametrize('dtype', [jnp.float16, jnp.float64])
def test_other_dtypes_have_no_kernel(dtype):
  x = jax.ShapeDtypeStruct((2, 64, 4, 64), dtype)
  mask = kernel_cases.segment_mask(jnp.zeros((2, 64), jnp.int32))
  spec = _KernelSpec(mask)
  heads = kernel_inputs.Heads(x, x, x)
  reason = native.reason_against(heads, spec, kernel_cases.NO_MESH)
  assert reason == jnp.dtype(dtype).name


_MULTI_QUERY = pax_fiddle.Config(
  multi_query_attention.MultiQueryDotProductAttention
)
_CHUNKS = _MULTI_QUERY.clone().set(attention_chunk_size=20)
_LOCAL = pax_fiddle.Config(
  attentions.LocalSelfAttention, left_context=20, right_context=0
)
_GROUPED_QUERY = pax_fiddle.Config(
  grouped_query_attention.GroupedQueryAttention, num_kv_heads=2
)


@pytest.mark.parametrize(
  ('stack', 'attention_p', 'fields'),
  [
    ('plain', _GROUPED_QUERY, dict(packed_input=False)),
    ('pipelined', _CHUNKS, {}),
    *nightly.cases(
      ('plain', _MULTI_QUERY, dict(local_window_size=(20, 0))),
      ('plain', _LOCAL, {}),
      ('repeated', None, {}),
      ('pipelined', None, {}),
    ),
  ],
)
def test_language_models(stack, attention_p, fields):
  def results(implementation):
    template = attention_p and attention_p.clone()
    return kernel_cases.loss_and_gradients(
      kernel_cases.language_model(implementation, stack, template, **fields)
    )

  with jax.set_mesh(kernel_cases.mesh()):
    got, text = results('native')
  assert attention.GRADIENT in text
  want, text = results('einsum')
  assert attention.FORWARD not in text
  kernel_cases.assert_close(got, want, 1e-4)


def _losses_in_training(implementation, dtype):
  lm = kernel_cases.language_model(implementation)
  lm.fprop_dtype = dtype
  traced, params = kernel_cases.trace_loss(lm)
  step = traced.lower().compile()
  losses = []
  for _ in range(6):
    loss, gradients = step(params)
    params = jax.tree.map(lambda p, g: p - 0.3 * g, params, gradients)
    losses.append(float(loss))
  return losses


@pytest.mark.parametrize(
  ('dtype', 'tolerance'),
  [(jnp.float32, 1e-5), *nightly.cases((jnp.bfloat16, 1e-2))],
)
def test_training(dtype, tolerance):
  got = _losses_in_training('native', dtype)
  want = _losses_in_training('einsum', dtype)
  np.testing.assert_allclose(got, want, rtol=tolerance)
  assert want[-1] < want[0] - 0.1


def _forward_calls(policy):
  lm = kernel_cases.language_model('native', 'repeated', policy=policy)
  traced, _ = kernel_cases.trace_loss(lm)
  text = traced.lower().compile().as_text()
  return text.count(f'custom_call_target="{attention.FORWARD}"')


def test_saved_contexts_are_not_recomputed():
  assert _forward_calls(_Policy.SAVE_OUT_PROJ) == 2
  assert _forward_calls(_Policy.SAVE_CONTEXT) == 1


@pytest.mark.parametrize(
  ('isa', 'length', 'has_kernel'),
  [
    ('avx2', 256, True),
    ('avx2', 64, False),
    *nightly.cases(('avx512', 256, True)),
  ],
)
def test_auto_takes_the_kernel_where_it_is_fast(
  isa, length, has_kernel, monkeypatch, caplog
):
  kernel_choice._log_once.cache_clear()
  monkeypatch.setattr(kernels, 'cpu_isa', lambda: isa)
  with caplog.at_level(logging.INFO):
    traced, _ = kernel_cases.trace_loss(
      kernel_cases.language_model('auto'), length
    )
  assert (attention.FORWARD in str(traced.jaxpr)) == has_kernel
  lines = [r.message for r in caplog.records if 'Attention of' in r.message]
  choice = f'Attention of float32[4,{length},2,64]: native.'
  assert lines == [choice] * has_kernel


def test_attention_without_masks_of_segments_is_einsum():
  layer_p = attentions.DotProductAttention.config(
    name='attention',
    input_dim=8,
    hidden_dim=8,
    num_heads=2,
    atten_implementation='native',
  )
  layer = layer_p.Instantiate()
  x = jnp.ones((2, 128, 8))
  mask = masks.causal_mask(x)
  with pytest.raises(ValueError, match='not support a mask that is an array'):
    jax.eval_shape(layer.init, jax.random.key(0), x, x, x, mask)
