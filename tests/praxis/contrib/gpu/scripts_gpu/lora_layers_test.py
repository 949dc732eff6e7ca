# bazel: size=small
# SPDX-License-Identifier: Apache-2.0
"""LoRA layers equal plain ones whose weight is the sum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.contrib.gpu.scripts_gpu import lora_layers
from praxis.layers import attentions, linears
from tests.praxis.layers import running

_D, _N, _H, _R = 4, 2, 3, 2
_HEADS = {'input_dim': _D, 'num_heads': _N, 'dim_per_head': _H}
_X = running.normal(2, 5, _D)
_Y = running.normal(2, 5, _N, _H)


def _nhd(product):
  """The product [N · H, D] as the weight [N, H, D]."""
  return product.reshape(_N, _H, _D)


# LoRA layer, plain layer, fields, input, and w + A Bᵀ by numpy.
_CASES = {
  'linear': (
    lora_layers.LoraLinear,
    linears.Linear,
    {'input_dims': _D, 'output_dims': 6},
    _X,
    lambda a, b: a @ b.T,
  ),
  'to heads': (
    lora_layers.LoraAttentionProjection,
    attentions.AttentionProjection,
    _HEADS,
    _X,
    lambda a, b: (a @ b.T).reshape(_D, _N, _H),
  ),
  'from heads': (
    lora_layers.LoraAttentionProjection,
    attentions.AttentionProjection,
    {**_HEADS, 'is_output_projection': True},
    _Y,
    lambda a, b: (a @ b.T).reshape(_D, _N, _H),
  ),
  'from heads, NHD': (
    lora_layers.LoraAttentionProjection,
    attentions.AttentionProjection,
    {**_HEADS, 'is_output_projection': True, 'use_nhd_shape': True},
    _Y,
    lambda a, b: _nhd(b @ a.T),
  ),
  'combined dims': (
    lora_layers.LoraAttentionProjection,
    attentions.AttentionProjection,
    {**_HEADS, 'attention_combine_dims': True, 'use_bias': False},
    _X,
    lambda a, b: a @ b.T,
  ),
  'queries, keys, values': (
    lora_layers.LoraCombinedQKVProjection,
    attentions.CombinedQKVProjectionLayer,
    _HEADS,
    _X,
    lambda a, b: np.stack(
      [(a[i] @ b[i].T).reshape(_D, _N, _H) for i in range(3)]
    ),
  ),
}


@pytest.mark.parametrize('name', _CASES)
def test_output_and_gradient_are_those_of_the_sum(name):
  cls, plain, fields, inputs, low_rank = _CASES[name]
  layer, variables = running.build(cls.config(rank=_R, **fields), inputs)
  params = dict(variables['params'])
  a, b = (np.asarray(params.pop(f'lora_{k}')) for k in 'ab')
  total = {**params, 'w': params['w'] + low_rank(a, b)}
  other = plain.config(**fields).Instantiate()

  @running.jit
  def both(lora_params, total):
    def loss(layer, params):
      out = layer.apply({'params': params}, inputs)
      return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(out)), out

    gradient = jax.grad(loss, argnums=1, has_aux=True)
    return gradient(layer, lora_params), gradient(other, total)

  (gradient, got), (plain_gradient, want) = both(variables['params'], total)
  for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5)
  np.testing.assert_allclose(gradient['w'], plain_gradient['w'], atol=1e-5)
  # The chain rule: along any direction of A, the weight moves by that times Bᵀ.
  for key, moved in (('a', lambda d: (d, b)), ('b', lambda d: (a, d))):
    found = np.asarray(gradient[f'lora_{key}'])
    direction = np.random.default_rng(1).normal(size=found.shape)
    along = np.sum(plain_gradient['w'] * low_rank(*moved(direction)))
    np.testing.assert_allclose(np.sum(found * direction), along, rtol=1e-3)


def test_starts_as_the_plain_layer():
  init = base_layer.WeightInit.Constant(2.0)
  layer = lora_layers.LoraLinear.config(
    input_dims=_D, output_dims=6, rank=_R, weight_init=init
  ).Instantiate()
  tree = layer.abstract_init_with_metadata(_X)['params']
  assert tree['lora_a'].init == init
  assert tree['lora_a'].full_shape == (_D, _R)
  params = layer.init(jax.random.key(0), _X)['params']
  assert not params['lora_b'].any()
  got = layer.apply({'params': params}, _X)
  np.testing.assert_allclose(got, _X @ params['w'], atol=1e-5)


def test_own_init_and_theta_by_key():
  layer, variables = running.build(
    lora_layers.LoraLinear.config(
      input_dims=_D,
      output_dims=6,
      rank=_R,
      lora_init=base_layer.WeightInit.Gaussian(0.5),
      fprop_dtype=jnp.bfloat16,
    ),
    _X,
  )
  tree = layer.abstract_init_with_metadata(_X)['params']
  assert tree['lora_a'].init == base_layer.WeightInit.Gaussian(0.5)
  assert tree['w'].init != tree['lora_a'].init
  weight = layer.apply(variables, method=lambda layer: layer.theta['w'])
  assert weight.dtype == jnp.bfloat16
  params = {k: np.asarray(v) for k, v in variables['params'].items()}
  want = params['w'] + params['lora_a'] @ params['lora_b'].T
  np.testing.assert_allclose(weight.astype(np.float32), want, atol=0.03)


@pytest.mark.parametrize('cls', [case[0] for case in _CASES.values()])
def test_rank_is_needed(cls):
  fields, inputs = next(c[2:4] for c in _CASES.values() if c[0] is cls)
  with pytest.raises(ValueError, match=f'{cls.__name__} .* needs rank > 0'):
    running.build(cls.config(**fields), inputs)
