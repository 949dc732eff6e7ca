# SPDX-License-Identifier: Apache-2.0
"""Linear layers with per-example gradient norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pax.ghostnorm import base
from praxis import base_layer
from praxis.layers import linears

JTensor = base.JTensor
Projector = Callable[[Any, Any], Any]


def make_last_dim_projector(einsum: Callable[..., Any]) -> Projector:
  """Returns the product of (inputs, weights), with per-example norms."""
  product = base.with_norms(
    lambda weights, inputs: einsum('...y,yz->...z', inputs, weights),
    _squares_of_product,
  )
  return lambda inputs, weights: product(weights, inputs)


def bias_add(inputs: Float[Array, 'N *B D'], bias: Any) -> Float[Array, '...']:
  """Returns inputs plus bias."""
  return _bias_add(bias, inputs)


def bias_add_fwd(
  inputs: Float[Array, 'N *B D'], bias: Any
) -> tuple[Float[Array, '...'], JTensor | None]:
  """Returns inputs plus bias, and the residual of `bias_add_bwd`."""
  return bias_add(inputs, bias), base.get_aux(bias)


def bias_add_bwd(
  res: JTensor | None, g: Float[Array, 'N *B D']
) -> tuple[Float[Array, 'N *B D'], Any]:
  """Returns the gradients of inputs and bias.

  Args:
    res: Weights of the examples, or None; see `base`.
    g: Gradient of the output.
  """
  zeros = jnp.zeros(g.shape[-1], g.dtype)
  bias = zeros if res is None else base.ParamWithAux(zeros, res)
  return jax.vjp(bias_add, jnp.zeros_like(g), bias)[1](g)


class LinearGhostNorm(linears.Linear):
  """`Linear` with per-example gradient norms."""

  def __call__(self, inputs: Float[Array, 'N *B I']) -> Float[Array, '...']:
    project = make_last_dim_projector(self.einsum)
    outputs = project(inputs, self.theta.w)
    mapping = linears.step_mapping(
      self.activation_split_dims_mapping, outputs.ndim
    )
    return base_layer.maybe_shard(outputs, mapping, self.mesh_axis_names)


class BiasGhostNorm(linears.Bias):
  """`Bias` with per-example gradient norms."""

  def __call__(self, inputs: Float[Array, 'N *B D']) -> Float[Array, '...']:
    return bias_add(inputs, self.theta.b)


def _squares_of_product(
  weights: Float[Array, 'I O'],
  inputs: tuple[Float[Array, 'N *B I']],
  g: Float[Array, 'N *B O'],
) -> Float[Array, ' N']:
  """Returns |Xᵀ G|² for each example, by the cheaper of two ways."""
  (x,) = inputs
  x = x.reshape(x.shape[0], -1, x.shape[-1]).astype(jnp.float32)
  g = g.reshape(x.shape[0], -1, g.shape[-1]).astype(jnp.float32)
  if 2 * x.shape[1] ** 2 <= weights.size:
    # |Xᵀ G|² is the sum over the elementwise product of X Xᵀ and G Gᵀ.
    grams = (jnp.einsum('nti,nsi->nts', y, y) for y in (x, g))
    return jnp.einsum('nts,nts->n', *grams)
  return _squares(jnp.einsum('nti,nto->nio', x, g))


def _squares_of_bias(
  bias: Float[Array, ' D'],
  inputs: tuple[Float[Array, 'N *B D']],
  g: Float[Array, 'N *B D'],
) -> Float[Array, ' N']:
  del bias, inputs
  rows = g.reshape(g.shape[0], -1, g.shape[-1]).astype(jnp.float32)
  return _squares(rows.sum(axis=1))


def _squares(x: Float[Array, 'N ...']) -> Float[Array, ' N']:
  return jnp.sum(jnp.square(x), axis=tuple(range(1, x.ndim)))


_bias_add = base.with_norms(
  lambda bias, inputs: inputs + bias, _squares_of_bias
)
