# SPDX-License-Identifier: Apache-2.0
"""Attention by einsum and language models to compare the fused kernels with."""

from __future__ import annotations

import importlib.util

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax._src.cudnn import fused_attention_stablehlo
from jax.sharding import AxisType

from praxis import base_layer, py_utils
from praxis.layers import attentions, transformer_models, transformers
from praxis.layers.attentions import attention_core, kernel_inputs, segments
from praxis.nested_map import NestedMap
from tests.praxis.layers import running
from tests.testing.layers import random_variables

LENGTH, HEAD_DIM = 384, 64
SPLIT = ['data', None, 'mdl', None]
NO_MESH = jax.sharding.get_abstract_mesh()


def assume_cuda_plugin(monkeypatch):
  """Lets JAX trace cuDNN attention without its CUDA plugin."""
  monkeypatch.setattr(
    fused_attention_stablehlo, 'check_cudnn_version', lambda: 91000
  )
  find_spec = importlib.util.find_spec

  def find(name, package=None):
    return 'jax_cuda' in name or find_spec(name, package)

  monkeypatch.setattr(importlib.util, 'find_spec', find)


def mesh() -> jax.sharding.Mesh:
  return jax.make_mesh((2, 2), ('data', 'mdl'), axis_types=(AxisType.Auto,) * 2)


def random_heads(
  num_heads=2,
  num_kv_heads=1,
  dtype=jnp.float32,
  length=LENGTH,
  head_dim=HEAD_DIM,
):
  """Returns scaled queries, keys and values of two examples."""
  rng = np.random.default_rng(0)
  query, key, value = (
    jnp.asarray(rng.normal(size=(2, length, n, head_dim)), dtype)
    for n in (num_heads, num_kv_heads, num_kv_heads)
  )
  scale = jnp.asarray(head_dim**-0.5, dtype)
  return kernel_inputs.Heads(query * scale, key, value)


def segment_ids(length=LENGTH):
  """Returns the ids of up to three segments, and no padding."""
  rng = np.random.default_rng(1)
  ids = np.sort(rng.integers(0, 3, (2, length)), axis=1)
  return jnp.asarray(ids, jnp.int32)


def segment_mask(ids, is_causal=True, is_packed=True):
  return segments.SegmentMask(
    ids, is_causal, np.dtype(np.float32), is_packed=is_packed
  )


def by_einsum(heads, spec):
  """Returns the attended values with all logits in memory."""
  mask, window = spec.mask.additive(), spec.window
  if window is not None:
    length = mask.shape[-1]
    mask = jnp.minimum(mask, window.mask(length, length, 0, jnp.float32))
  logits = attention_core.dot_product_logits(jnp.einsum, *heads[:2])
  transform = attention_core.LogitTransform(
    cap=spec.logit_cap, extra_logit=spec.extra_logit
  )
  probs = attention_core.attention_probs(logits, mask, None, transform)
  return attention_core.attend_to_values(
    jnp.einsum, probs.astype(heads.value.dtype), heads.value
  )


def with_gradients(attend, operands):
  """Returns the attended values, and the gradients of a loss of them."""

  def loss(operands):
    attended = attend(operands)
    encoded = attended.astype(jnp.float32)
    weights = jnp.cos(jnp.arange(encoded.shape[-1], dtype=jnp.float32))
    return jnp.sum(weights * encoded**2), attended

  gradients, attended = running.jit(jax.grad(loss, has_aux=True))(operands)
  return attended, gradients


def assert_close(got, want, tolerance):
  pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
  pairs = [[np.asarray(x, np.float32) for x in pair] for pair in pairs]
  # Some gradients are sums that cancel, such as that of the bias of keys.
  floor = 1e-7 * max(np.max(np.abs(b)) for _, b in pairs)
  for a, b in pairs:
    assert np.max(np.abs(a - b)) <= tolerance * np.max(np.abs(b)) + floor


def language_model(
  implementation,
  stack='plain',
  attention=None,
  policy=None,
  packed_input=True,
  **fields,
):
  """Returns the Config of a language model.

  Args:
    implementation: of its attention.
    stack: plain, repeated or pipelined.
    attention: its Config; None: DotProductAttention.
    policy: AutodiffCheckpointType of the stack.
    packed_input: whether rows have several segments.
    **fields: of the stack of layers.
  """
  attention = attention or attentions.DotProductAttention.config()
  attention.atten_implementation = implementation
  split = attention.activation_split_dims_mapping
  if hasattr(split, 'blnh'):
    split.blnh = SPLIT
  else:
    split.set(btnh=SPLIT, bskh=SPLIT)
  block = transformers.StackedTransformer.config(
    num_layers=1, hidden_dims=16, num_heads=2, dim_per_head=HEAD_DIM
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
  if policy is not None:
    block.checkpoint_policy = policy
  return transformer_models.TransformerLm.config(
    name='lm',
    model_dims=8,
    vocab_size=13,
    packed_input=packed_input,
    mesh_axis_names=['data', 'mdl'],
    stacked_transformer_tpl=block,
  )


def trace_loss(lm, length=128):
  """Returns the traced loss and gradients of a model, and its variables.

  Packed rows have three segments; others end with padding.
  """
  rng = np.random.default_rng(2)
  ids = jnp.asarray(rng.integers(13, size=(4, length)))
  segment_ids, num_tokens = None, [length, length // 2, 1, 7]
  if lm.packed_input:
    segment_ids = np.sort(rng.integers(1, 4, ids.shape), axis=1)
    segment_ids, num_tokens = jnp.asarray(segment_ids, jnp.int32), [length] * 4
  is_padding = jnp.arange(length) >= jnp.asarray(num_tokens)[:, jnp.newaxis]
  paddings = is_padding.astype(jnp.float32)
  labels = NestedMap(class_ids=ids, class_weights=1.0 - paddings)
  layer = lm.Instantiate()
  variables = random_variables(layer, ids, paddings, segment_ids=segment_ids)

  def loss(params):
    outputs, _ = layer.apply(
      {**variables, 'params': params},
      ids,
      paddings,
      labels,
      segment_ids=segment_ids,
      mutable=[base_layer.AUX_LOSS],
    )
    return outputs.total_loss

  params = variables['params']
  return running.jit(jax.value_and_grad(loss)).trace(params), params


def loss_and_gradients(lm):
  """Returns the loss and the gradients of a model, and its jaxpr as text."""
  traced, params = trace_loss(lm)
  return traced.lower().compile()(params), str(traced.jaxpr)


def kernels(jaxpr, name):
  """Yields the eqns of kernels whose results are used.

  Args:
    jaxpr: searched with those inside it.
    name: of the primitive, or the beginning of its name.
  """
  for eqn in jaxpr.eqns:
    if all(isinstance(v, jax.extend.core.DropVar) for v in eqn.outvars):
      continue
    if eqn.primitive.name.startswith(name):
      yield eqn
    else:
      for inner in py_utils.sub_jaxprs(eqn):
        yield from kernels(inner, name)
