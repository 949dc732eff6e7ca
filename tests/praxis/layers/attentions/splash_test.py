# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Splash attention against einsum, alone and in language models."""

from __future__ import annotations

import dataclasses
import logging

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from praxis import base_layer, pax_fiddle, py_utils
from praxis.layers import (
  attentions,
  checkpoint_policy,
  multi_query_attention,
  transformer_models,
  transformers,
)
from praxis.layers.attentions import (
  attention_core,
  kernel_choice,
  masks,
  segments,
  splash,
)
from praxis.nested_map import NestedMap
from tests.praxis.layers import running
from tests.testing.layers import random_variables

_T, _H = 384, 64
_SPLIT = ['data', None, 'mdl', None]
_NO_MESH = jax.sharding.get_abstract_mesh()


def _mesh() -> jax.sharding.Mesh:
  return jax.make_mesh((2, 2), ('data', 'mdl'), axis_types=(AxisType.Auto,) * 2)


def _heads(num_heads=2, num_kv_heads=1, dtype=jnp.float32) -> splash.Heads:
  rng = np.random.default_rng(0)
  query, key, value = (
    jnp.asarray(rng.normal(size=(2, _T, n, _H)), dtype)
    for n in (num_heads, num_kv_heads, num_kv_heads)
  )
  return splash.Heads(query * jnp.asarray(_H**-0.5, dtype), key, value)


def _segment_ids() -> jax.Array:
  rng = np.random.default_rng(1)
  return jnp.asarray(np.sort(rng.integers(0, 3, (2, _T)), axis=1), jnp.int32)


def _by_einsum(heads, mask, window, cap):
  mask = mask.additive()
  if window is not None:
    mask = jnp.minimum(mask, window.mask(_T, _T, 0, jnp.float32))
  logits = attention_core.dot_product_logits(jnp.einsum, *heads[:2])
  transform = attention_core.LogitTransform(cap=cap)
  probs = attention_core.attention_probs(logits, mask, None, transform)
  return attention_core.attend_to_values(
    jnp.einsum, probs.astype(heads.value.dtype), heads.value
  )


def _with_gradients(attend, heads):
  weights = jnp.cos(jnp.arange(_H, dtype=jnp.float32))

  def loss(heads):
    return jnp.sum(weights * attend(heads).astype(jnp.float32) ** 2)

  return running.jit(lambda heads: (attend(heads), jax.grad(loss)(heads)))(
    heads
  )


def _assert_close(got, want, tolerance):
  pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
  pairs = [[np.asarray(x, np.float32) for x in pair] for pair in pairs]
  # Some gradients are sums that cancel, such as that of the bias of keys.
  floor = 1e-7 * max(np.max(np.abs(b)) for _, b in pairs)
  for a, b in pairs:
    assert np.max(np.abs(a - b)) <= tolerance * np.max(np.abs(b)) + floor


@pytest.mark.parametrize(
  'fields',
  [
    dict(),
    dict(dtype=jnp.bfloat16),
    dict(cap=2.0, num_kv_heads=2),
    dict(window=masks.ContextWindow(40, 0)),
    dict(window=masks.ContextWindow(40, 31), is_causal=False),
  ],
  ids=str,
)
def test_values_and_gradients_equal_einsum(fields):
  fields = dict(fields)
  cap, window = fields.pop('cap', None), fields.pop('window', None)
  is_causal = fields.pop('is_causal', True)
  heads = _heads(**fields)
  mask = segments.SegmentMask(_segment_ids(), is_causal, np.dtype(np.float32))
  assert splash.reason_against(heads, None, _NO_MESH) is None

  def attend(heads):
    spec = splash.Spec(is_causal, window, cap)
    return splash.attend(heads, mask.segment_ids, spec, None)

  got = _with_gradients(attend, heads)
  want = _with_gradients(lambda h: _by_einsum(h, mask, window, cap), heads)
  is_half = heads.query.dtype == jnp.bfloat16
  _assert_close(got, want, 2e-2 if is_half else 2e-5)


@pytest.mark.parametrize(
  ('shape', 'split', 'reason'),
  [
    ((2, 200, 4, 64), None, 'length of 200'),
    ((2, 256, 4, 80), None, 'head dimension of 80'),
    ((3, 256, 4, 64), _SPLIT, 'over a batch of 3'),
    ((2, 256, 3, 64), _SPLIT, 'over 3 heads'),
    ((2, 256, 4, 64), [None, 'data', None, None], 'over sequence'),
  ],
)
def test_reasons_against_the_kernel(shape, split, reason):
  x = jax.ShapeDtypeStruct(shape, jnp.float32)
  mesh = _mesh().abstract_mesh
  assert reason in splash.reason_against(splash.Heads(x, x, x), split, mesh)


def test_a_segment_mask_is_its_additive_mask():
  ids = _segment_ids()
  for is_causal in (True, False):
    mask = segments.SegmentMask(ids, is_causal, np.dtype(np.float32))
    sees = ids[:, :, None] == ids[:, None]
    if is_causal:
      sees &= np.tril(np.ones((_T, _T), bool))
    assert mask.shape == (2, 1, _T, _T) and mask.ndim == 4
    masked = masks.is_masked(jnp.asarray(mask))
    np.testing.assert_array_equal(masked[:, 0], ~np.asarray(sees))


def _lm(implementation, stack='plain', attention=None, **fields):
  attention = attention or attentions.DotProductAttention.config()
  attention.atten_implementation = implementation
  attention.activation_split_dims_mapping.blnh = _SPLIT
  block = transformers.StackedTransformer.config(
    num_layers=1, hidden_dims=16, num_heads=2, dim_per_head=64
  )
  block.transformer_layer_params_tpl.tr_atten_tpl = attention
  block.set(**fields)
  if stack == 'repeated':
    block = transformers.StackedTransformerRepeated.config(
      block=block, x_times=2
    )
  elif stack == 'pipelined':
    block = transformers.PipelinedTransformer.config(
      pipeline_stage=block,
      num_pipeline_stages=2,
      num_pipeline_microbatches=2,
    )
  return transformer_models.TransformerLm.config(
    name='lm',
    model_dims=8,
    vocab_size=13,
    packed_input=True,
    mesh_axis_names=['data', 'mdl'],
    stacked_transformer_tpl=block,
  )


def _loss_and_gradients(lm):
  rng = np.random.default_rng(2)
  ids = jnp.asarray(rng.integers(13, size=(4, 128)))
  ones, zeros = jnp.ones(ids.shape), jnp.zeros(ids.shape)
  segment_ids = jnp.asarray(np.sort(rng.integers(1, 4, ids.shape), axis=1))
  labels = NestedMap(class_ids=ids, class_weights=ones)
  layer = lm.Instantiate()
  variables = random_variables(layer, ids, zeros)

  def loss(params):
    outputs, _ = layer.apply(
      {**variables, 'params': params},
      ids,
      zeros,
      labels,
      segment_ids=segment_ids,
      mutable=[base_layer.AUX_LOSS],
    )
    return outputs.total_loss

  traced = running.jit(jax.value_and_grad(loss)).trace(variables['params'])
  results = traced.lower().compile()(variables['params'])
  return results, str(traced.jaxpr)


_MULTI_QUERY = multi_query_attention.MultiQueryDotProductAttention


@pytest.mark.parametrize(
  ('stack', 'attention', 'fields'),
  [
    ('plain', None, {}),
    ('plain', _MULTI_QUERY, dict(local_window_size=(20, 0))),
    ('repeated', None, {}),
    ('pipelined', None, {}),
  ],
)
def test_language_models(stack, attention, fields):
  def results(implementation):
    template = attention and pax_fiddle.Config(attention)
    lm = _lm(implementation, stack, template, **fields)
    with jax.set_mesh(_mesh()):
      return _loss_and_gradients(lm)

  got, text = results('splash')
  assert 'pallas_call' in text
  want, text = results('einsum')
  assert 'pallas_call' not in text
  _assert_close(got, want, 1e-4)


def test_auto_takes_einsum_on_cpus():
  _, text = _loss_and_gradients(_lm('auto'))
  assert 'pallas_call' not in text


def _kernels(jaxpr):
  """Yields the names of the kernels whose results are used."""
  for eqn in jaxpr.eqns:
    if all(isinstance(v, jax.extend.core.DropVar) for v in eqn.outvars):
      continue
    if eqn.primitive.name == 'pallas_call':
      yield eqn.params['name']
    else:
      for inner in py_utils.sub_jaxprs(eqn):
        yield from _kernels(inner)


def test_no_logits_of_the_sequence_on_tpus(caplog):
  lm = _lm('auto', 'repeated')
  lm.stacked_transformer_tpl.checkpoint_policy = (
    checkpoint_policy.AutodiffCheckpointType.SAVE_CONTEXT
  )
  layer = lm.Instantiate()
  ids = jnp.zeros((2, 1024), jnp.int32)
  variables = jax.eval_shape(lambda: random_variables(layer, ids, 0.0 * ids))
  labels = NestedMap(class_ids=ids, class_weights=jnp.ones(ids.shape))

  def loss(params):
    outputs, _ = layer.apply(
      {**variables, 'params': params},
      ids,
      0.0 * ids,
      labels,
      mutable=[base_layer.AUX_LOSS],
    )
    return outputs.total_loss

  kernel_choice._log_choice.cache_clear()
  with py_utils.tracing_for('tpu'), caplog.at_level(logging.INFO):
    jaxpr = jax.make_jaxpr(jax.grad(loss))(variables['params'])
    text = str(jaxpr)
  assert '1024,1024' not in text
  # The saved context has the results that the backward pass needs.
  kernels = [name.split('_')[2] for name in _kernels(jaxpr.jaxpr)]
  assert kernels == ['fwd', 'dkv', 'dq']
  assert [r.message for r in caplog.records if 'Attention of' in r.message] == [
    'Attention of float32[2,1024,2,64]: splash.'
  ]


def test_what_splash_lacks_is_an_error_or_einsum():
  attention = attentions.DotProductAttention.config(atten_dropout_prob=0.1)
  lm = _lm('splash', attention=attention, atten_dropout_prob=0.1)
  with pytest.raises(ValueError, match='not support atten_dropout_prob'):
    _loss_and_gradients(lm)
  with pytest.raises(ValueError, match='atten_implementation must be one of'):
    _loss_and_gradients(_lm('flash'))


def test_a_subclass_with_other_arithmetic_has_no_kernel():
  class Sharper(attentions.DotProductAttention):
    def _probs(self, logits, mask, bias):
      return super()._probs(2 * logits, mask, bias)

  class Same(Sharper):
    has_kernel = True

  assert attentions.DotProductAttention.has_kernel and Same.has_kernel
  assert not Sharper.has_kernel
  assert not attentions.LocalSelfAttention.has_kernel
  assert not attentions.DotProductAttentionXL.has_kernel
  lm = _lm('splash', attention=pax_fiddle.Config(Sharper))
  with pytest.raises(ValueError, match='not support Sharper'):
    _loss_and_gradients(lm)


def test_a_causal_stack_makes_segments_causal():
  mask = segments.SegmentMask(_segment_ids(), False, np.dtype(np.float32))
  merged, _ = transformers.compute_attention_masks_for_fprop(
    jnp.zeros((2, _T, 8)),
    causal_attention=True,
    segment_mask=mask,
    fold_padding_with_segment_mask=True,
  )
  assert merged == dataclasses.replace(mask, is_causal=True)
