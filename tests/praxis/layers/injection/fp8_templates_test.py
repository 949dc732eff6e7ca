# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The products of a language model that fp8_scaling replaces."""

from __future__ import annotations

import collections

import jax
import jax.numpy as jnp
import pytest

from praxis import pax_fiddle
from praxis.layers import (
  base_ops,
  find_templates,
  linears,
  normalizations,
  repeats,
  transformer_models,
  transformers,
)
from praxis.layers.injection import fp8_nvidia_gpu, fp8_templates
from praxis.nested_map import NestedMap

_IDS = jnp.ones((2, 4), jnp.int32)
# Products with a weight in one layer: q, k, v, their output, two of the
# feed-forward network.
_NUM_PRODUCTS = 6


def _lm(**fields):
  block = transformers.StackedTransformer.config(
    num_layers=1, hidden_dims=16, num_heads=2, model_dims=8
  )
  return transformer_models.TransformerLm.config(
    name='lm',
    model_dims=8,
    vocab_size=13,
    stacked_transformer_tpl=transformers.StackedTransformerRepeated.config(
      block=block, x_times=2
    ),
    **fields,
  )


def _num_casts(lm_p):
  """Returns how many tensors a training step casts to each fp8 dtype."""
  lm = lm_p.Instantiate()
  labels = NestedMap(class_ids=_IDS, class_weights=jnp.ones(_IDS.shape))
  args = _IDS, jnp.zeros(_IDS.shape), labels
  variables = jax.eval_shape(lambda: lm.init(jax.random.key(0), *args))

  def loss(params):
    return lm.apply({'params': params}, *args).total_loss

  jaxpr = str(jax.make_jaxpr(jax.grad(loss))(variables['params']))
  counts = collections.Counter(
    dtype
    for dtype in ('float8_e4m3fn', 'float8_e5m2')
    for _ in range(jaxpr.count(f'new_dtype={dtype}'))
  )
  names = {
    jax.tree_util.keystr(path[-1:], simple=True)
    for path, _ in jax.tree_util.tree_leaves_with_path(variables)
  }
  return counts, names


def test_products_with_weights_of_the_stack_are_fp8():
  counts, names = _num_casts(_lm())
  assert not counts
  current, current_names = _num_casts(_lm(fp8_scaling='current'))
  assert current_names == names
  assert current['float8_e5m2'] == _NUM_PRODUCTS
  # The layer is rematerialized: operands are cast in both passes.
  assert current['float8_e4m3fn'] == 2 * 2 * _NUM_PRODUCTS
  delayed, delayed_names = _num_casts(_lm(fp8_scaling='delayed'))
  assert delayed == current
  assert delayed_names - names == {
    f'{tensor}_{suffix}'
    for tensor in ('input', 'kernel', 'output_grad')
    for suffix in ('scale', 'amax_history')
  }


@pytest.mark.parametrize(
  ('scaling', 'op', 'gated_op'),
  [
    (
      'delayed',
      fp8_nvidia_gpu.Fp8EinsumOp,
      fp8_nvidia_gpu.Fp8EinsumGatedOp,
    ),
    (
      'current',
      fp8_nvidia_gpu.Fp8CurrentScalingEinsumOp,
      fp8_nvidia_gpu.Fp8CurrentScalingEinsumGatedOp,
    ),
  ],
)
def test_templates_of_experts_and_of_users(scaling, op, gated_op):
  experts = pax_fiddle.Config(transformers.TransformerFeedForwardMoe)
  fp8_templates.set_fp8_einsums(experts, scaling)
  assert experts.einsum_tpl.cls is op
  assert experts.einsum_gated_tpl.cls is gated_op

  class Product(base_ops.EinsumOp):
    """An einsum that a user chose."""

  layer = pax_fiddle.Config(transformers.Transformer)
  layer.tr_atten_tpl.proj_tpl.einsum_tpl = pax_fiddle.Config(Product)
  fp8_templates.set_fp8_einsums(layer, scaling)
  attention = layer.tr_atten_tpl
  assert attention.proj_tpl.einsum_tpl.cls is Product
  assert attention.combined_qkv_proj_tpl.einsum_tpl.cls is op
  assert attention.qk_einsum_tpl.cls is base_ops.EinsumOp
  linear_tpls = find_templates.find_target_tpl(layer, linears.Linear)
  assert {tpl.einsum_tpl.cls for tpl in linear_tpls} == {op}


def test_invalid_scalings_and_models_are_refused():
  with pytest.raises(ValueError, match="must be 'delayed', 'current' or None"):
    _lm(fp8_scaling='e4m3').Instantiate().init(
      jax.random.key(0), _IDS, jnp.zeros(_IDS.shape)
    )
  norm = pax_fiddle.Config(
    repeats.Repeat, sub_tpl=pax_fiddle.Config(normalizations.LayerNorm)
  )
  with pytest.raises(ValueError, match='needs an einsum_tpl'):
    fp8_templates.set_fp8_einsums(norm, 'current')
