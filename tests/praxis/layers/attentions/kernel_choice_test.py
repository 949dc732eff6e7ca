# SPDX-License-Identifier: Apache-2.0
"""The choice of attention kernels, and remat policies with them."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle, py_utils
from praxis.kernels import nvidia
from praxis.layers import (
  attentions,
  checkpoint_policy,
  context_parallel,
  grouped_query_attention,
  multi_query_attention,
  transformers,
)
from praxis.layers.attentions import (
  cudnn,
  kernel_choice,
  kernel_inputs,
  masks,
  segments,
  splash,
)
from tests.praxis.layers import running
from tests.praxis.layers.attentions import kernel_cases
from tests.testing import nightly

_Policy = checkpoint_policy.AutodiffCheckpointType
# Forward and backward of each kernel: the primitives and their names.
_PRIMITIVES = {'tpu': 'pallas_call', 'gpu': 'dot_product_attention'}


@pytest.fixture(autouse=True)
def cuda_plugin(monkeypatch):
  kernel_cases.assume_cuda_plugin(monkeypatch)
  kernel_choice._log_once.cache_clear()


def _trace(platform, lm, length=1024):
  lm.fprop_dtype = jnp.bfloat16
  with py_utils.tracing_for(platform):
    return kernel_cases.trace_loss(lm, length=length)[0]


def _kernel_names(traced, platform):
  eqns = kernel_cases.kernels(traced.jaxpr.jaxpr, _PRIMITIVES[platform])
  return [eqn.params.get('name', eqn.primitive.name) for eqn in eqns]


def _choices(caplog):
  return [r.message for r in caplog.records if 'Attention of' in r.message]


def test_splash_on_tpus(caplog):
  with caplog.at_level(logging.INFO):
    traced = _trace('tpu', kernel_cases.language_model('auto', 'repeated'))
  assert '1024,1024' not in str(traced.jaxpr)
  assert _choices(caplog) == ['Attention of bfloat16[4,1024,2,64]: splash.']


@pytest.mark.parametrize('stack', ['pipelined', *nightly.cases('repeated')])
def test_cudnn_on_gpus(stack, caplog):
  lm = kernel_cases.language_model('auto', stack, packed_input=False)
  with (
    jax.set_mesh(kernel_cases.mesh()),
    caplog.at_level(logging.INFO),
  ):
    traced = _trace('gpu', lm)
    text = traced.lower(lowering_platforms=('cuda',)).as_text()
  # The forward pass, and again for the backward pass.
  assert text.count('@__cudnn$fmhaSoftmax(') == 2
  assert text.count('@__cudnn$fmhaSoftmaxBackward(') == 1
  assert 'PADDING_CAUSAL' in text and '1024x1024' not in text
  (choice,) = _choices(caplog)
  assert choice.endswith('1024,2,64]: cudnn.')


def test_cudnn_takes_odd_lengths_in_training():
  lm = kernel_cases.language_model('cudnn', packed_input=False)
  assert list(_kernel_names(_trace('gpu', lm, length=129), 'gpu'))


def test_packed_rows_on_gpus(caplog):
  with caplog.at_level(logging.INFO):
    traced = _trace('gpu', kernel_cases.language_model('auto', 'repeated'))
  assert _choices(caplog) == [
    'Attention of bfloat16[4,1024,2,64]: triton, cudnn does not support packed '
    'rows.'
  ]
  eqns = kernel_cases.kernels(traced.jaxpr.jaxpr, 'pallas_call')
  # The forward pass, again for the backward pass, and two kernels of gradients.
  assert len(list(eqns)) == 4


def test_a_jax_without_the_triton_backend_has_einsum(monkeypatch, caplog):
  monkeypatch.setattr(nvidia, '_TRITON', 'jax.experimental.pallas.no_backend')
  with caplog.at_level(logging.INFO):
    _trace('gpu', kernel_cases.language_model('auto'))
  (choice,) = _choices(caplog)
  assert 'einsum' in choice
  assert 'triton does not support a version of JAX without' in choice


def test_what_no_kernel_supports_has_one_reason(caplog):
  lm = kernel_cases.language_model('auto')
  with caplog.at_level(logging.INFO), py_utils.tracing_for('gpu'):
    kernel_cases.trace_loss(lm, length=1024)
  (choice,) = _choices(caplog)
  assert choice.endswith(
    '64]: einsum, cudnn and triton do not support float32.'
  )


@pytest.mark.parametrize(
  ('stack', 'policy', 'num_forward'),
  [
    ('repeated', _Policy.SAVE_OUT_PROJ, 2),
    ('pipelined', _Policy.SAVE_CONTEXT, 1),
    *nightly.cases(
      ('repeated', _Policy.SAVE_CONTEXT, 1),
      ('pipelined', _Policy.SAVE_OUT_PROJ, 2),
    ),
  ],
)
def test_remat_of_packed_rows_on_gpus(stack, policy, num_forward):
  lm = kernel_cases.language_model('auto', stack, policy=policy)
  with jax.set_mesh(kernel_cases.mesh()):
    traced = _trace('gpu', lm)
  eqns = kernel_cases.kernels(traced.jaxpr.jaxpr, 'pallas_call')
  names = sorted(eqn.params['name'] for eqn in eqns)
  assert names == [
    *['pax_attention_forward'] * num_forward,
    *('pax_attention_key_gradients', 'pax_attention_query_gradient'),
  ]


def test_grouped_queries_have_kernels():
  attention = pax_fiddle.Config(
    grouped_query_attention.GroupedQueryAttention, num_kv_heads=1
  )
  lm = kernel_cases.language_model(
    'auto', attention=attention, packed_input=False
  )
  for platform in ('tpu', 'gpu'):
    traced = _trace(platform, lm)
    assert _kernel_names(traced, platform)
    assert '1024,1024' not in str(traced.jaxpr)


def test_auto_takes_no_kernel_for_tpus_on_cpus():
  traced, _ = kernel_cases.trace_loss(kernel_cases.language_model('auto'))
  assert 'pallas_call' not in str(traced.jaxpr)


@pytest.mark.parametrize(
  ('platform', 'policy', 'num_forward'),
  [
    ('tpu', _Policy.SAVE_OUT_PROJ, 2),
    ('tpu', _Policy.SAVE_CONTEXT, 1),
    ('gpu', _Policy.SAVE_DOT_EXCEPT_LOGITS, 1),
    *nightly.cases(
      ('tpu', _Policy.SAVE_DOT_EXCEPT_LOGITS, 1),
      ('gpu', _Policy.SAVE_OUT_PROJ, 2),
      ('gpu', _Policy.SAVE_CONTEXT, 1),
    ),
  ],
)
def test_saved_contexts_are_not_recomputed(platform, policy, num_forward):
  lm = kernel_cases.language_model(
    'auto', 'repeated', policy=policy, packed_input=False
  )
  names = _kernel_names(_trace(platform, lm), platform)
  num_backward = {'tpu': 2, 'gpu': 1}[platform]
  assert sum('fwd' in name for name in names) == num_forward
  assert len(names) == num_forward + num_backward


def test_what_a_kernel_lacks_is_an_error_or_einsum():
  attention = attentions.DotProductAttention.config(atten_dropout_prob=0.1)
  lm = kernel_cases.language_model(
    'splash', attention=attention, atten_dropout_prob=0.1
  )
  with pytest.raises(ValueError, match='not support atten_dropout_prob'):
    kernel_cases.trace_loss(lm)
  lm = kernel_cases.language_model('flash')
  with pytest.raises(ValueError, match='atten_implementation must be one of'):
    kernel_cases.trace_loss(lm)
  lm = kernel_cases.language_model('cudnn')
  with pytest.raises(ValueError, match='support the platform tpu'):
    _trace('tpu', lm)


def test_a_subclass_with_other_arithmetic_has_no_kernel():
  class Sharper(attentions.DotProductAttention):
    def _probs(self, logits, mask, bias):
      return super()._probs(2 * logits, mask, bias)

  class Same(Sharper):
    has_kernel = True

  assert attentions.DotProductAttention.has_kernel and Same.has_kernel
  assert context_parallel.ContextParallelAttention.has_kernel
  assert not Sharper.has_kernel
  assert attentions.LocalSelfAttention.has_kernel
  assert not attentions.LocalSelfAttentionAlibi.has_kernel
  assert not attentions.LocalSelfAttentionXL.has_kernel
  assert not attentions.DotProductAttentionXL.has_kernel
  lm = kernel_cases.language_model(
    'splash', attention=pax_fiddle.Config(Sharper)
  )
  with pytest.raises(ValueError, match='not support Sharper'):
    kernel_cases.trace_loss(lm)


def test_arithmetic_of_any_base_has_no_kernel():
  class Sharper:
    def _probs(self, logits, mask, bias):
      return super()._probs(2 * logits, mask, bias)

  multi_query = multi_query_attention.MultiQueryDotProductAttention

  class Mixed(Sharper, attentions.DotProductAttention):
    pass

  class MixedIntoParent(multi_query, Mixed):
    pass

  class Local(multi_query, attentions.LocalSelfAttentionAlibi):
    pass

  class Same(Mixed):
    has_kernel = True

  class Child(Same):
    pass

  class WithContext(Child, multi_query):
    pass

  assert not any(c.has_kernel for c in (Mixed, MixedIntoParent, Local))
  assert all(c.has_kernel for c in (Same, Child, WithContext))


def test_lazy_prefixes_have_a_kernel():
  attention = attentions.DotProductAttentionWithLPB.config()
  lm = kernel_cases.language_model('auto', attention=attention)
  traced = _trace('tpu', lm)
  assert list(_kernel_names(traced, 'tpu'))
  assert '1024,1024' not in str(traced.jaxpr)


def test_a_split_may_name_axes_by_their_index():
  split = [0, -1, 'mdl', None]
  mesh = jax.sharding.AbstractMesh((2, 2), ('data', 'mdl'))
  axes = kernel_inputs.HeadAxes.of(split, mesh)
  assert axes == (('data',), (), ('mdl',), ())
  assert not any(kernel_inputs.HeadAxes.of(split, kernel_cases.NO_MESH))
  axes = kernel_inputs.HeadAxes.of([(0, 'mdl'), None, (-1,), None], mesh)
  assert axes == (('data', 'mdl'), (), (), ())


def test_a_mesh_transpose_renames_the_axes_of_a_split():
  mesh = jax.sharding.AbstractMesh((2, 2), ('data', 'mdl'))
  hparams = base_layer.JaxContext.HParams(
    mesh_axes_transpose={'data': 'mdl', 'mdl': None}
  )
  split = [('replica', 'data'), None, 'mdl', None]
  with base_layer.JaxContext.new_context(hparams=hparams):
    axes = kernel_inputs.HeadAxes.of(split, mesh)
  assert axes == (('mdl',), (), (), ())


@pytest.mark.parametrize('kernel', [splash, cudnn])
@pytest.mark.parametrize(
  ('window', 'num_keys', 'reason'),
  [
    (masks.ContextWindow(0, 0), 128, "window without the query's own position"),
    (None, 1, 'of another length'),
  ],
)
def test_queries_beside_their_keys_have_no_kernel(
  kernel, window, num_keys, reason
):
  query, key, value = kernel_cases.random_heads(dtype=jnp.bfloat16, length=128)
  heads = kernel_inputs.Heads(query, key[:, :num_keys], value[:, :num_keys])
  ids = jnp.ones((2, num_keys), jnp.int32)
  mask = kernel_cases.segment_mask(ids, is_packed=False)
  spec = kernel_inputs.KernelSpec(mask, window)
  got = kernel.reason_against(heads, spec, kernel_cases.NO_MESH)
  assert reason in got


@pytest.mark.parametrize('platform', ['tpu', 'gpu'])
def test_an_empty_batch_has_einsum(platform, caplog):
  layer = attentions.DotProductAttention.config(
    name='attention', input_dim=8, hidden_dim=128, num_heads=2
  ).Instantiate()
  x = jnp.ones((0, 512, 8), jnp.bfloat16)
  mask = kernel_cases.segment_mask(jnp.ones(x.shape[:2], jnp.int32))
  key = jax.random.key(0)
  with caplog.at_level(logging.INFO), py_utils.tracing_for(platform):
    (outputs, _), _ = jax.eval_shape(layer.init_with_output, key, x, x, x, mask)
  assert outputs.shape == x.shape
  (choice,) = _choices(caplog)
  assert 'einsum' in choice and 'without elements' in choice


def test_examples_may_share_their_segments():
  ids = kernel_cases.segment_ids(128)[:1]
  x = jnp.ones((2, 128, 8))

  def outputs(implementation, ids):
    layer = attentions.DotProductAttention.config(
      name='attention',
      input_dim=8,
      hidden_dim=128,
      num_heads=2,
      atten_implementation=implementation,
    ).Instantiate()
    mask = kernel_cases.segment_mask(ids)
    run = running.jit(lambda key: layer.init_with_output(key, x, x, x, mask))
    return run(jax.random.key(0))[0][0]

  got, want = outputs('splash', ids), outputs('einsum', ids)
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_causal_stack_makes_segments_causal():
  ids = kernel_cases.segment_ids()
  mask = kernel_cases.segment_mask(ids, is_causal=False, is_packed=False)
  merged, _ = transformers.compute_attention_masks_for_fprop(
    jnp.zeros((*ids.shape, 8)),
    causal_attention=True,
    segment_mask=mask,
    fold_padding_with_segment_mask=True,
  )
  assert merged.segment_ids is mask.segment_ids
  assert merged.is_causal and not merged.is_packed
  assert merged.dtype == mask.dtype


def test_a_segment_mask_is_its_additive_mask():
  ids = kernel_cases.segment_ids()
  length = ids.shape[1]
  for is_causal in (True, False):
    mask = kernel_cases.segment_mask(ids, is_causal)
    sees = ids[:, :, None] == ids[:, None]
    if is_causal:
      sees &= np.tril(np.ones((length, length), bool))
    assert mask.shape == (2, 1, length, length) and mask.ndim == 4
    assert isinstance(mask, segments.SegmentMask)
    masked = masks.is_masked(jnp.asarray(mask))
    np.testing.assert_array_equal(masked[:, 0], ~np.asarray(sees))
