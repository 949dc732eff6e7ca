# SPDX-License-Identifier: Apache-2.0
"""fp8 einsums with delayed scaling.

The scale of a tensor is computed from its amax history: the maximum absolute
values of the last steps. The new scale and history are returned as the
gradients of the old ones; a learner overwrites the variables with them. Several
uses combine by maximum if scale and history have flax's dtype fm32.

References:
  FP8 Formats for Deep Learning, https://arxiv.org/abs/2209.05433
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from praxis.layers.quantization.utils import einsum_equations

# The dtypes of operands, and of gradients, which need a wider range.
E4M3 = jnp.float8_e4m3fn
E5M2 = jnp.float8_e5m2


class Meta(NamedTuple):
  """Scale and amax history of a tensor before this step."""

  scale: Float[Array, '1']
  # Latest first.
  history: Float[Array, 'L']


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def quantize_operand(x: Array, meta: Meta, dtype: Any) -> tuple[Array, Array]:
  """Returns `x` in fp8 and its scale, without gradients."""
  scale = _next_scale(meta, dtype)
  return _quantize(x, scale, dtype), scale


def _quantize_operand_fwd(x: Array, meta: Meta, dtype: Any) -> Any:
  quantized = quantize_operand(x, meta, dtype)
  return quantized, _next_meta(x, meta, dtype)


def _quantize_operand_bwd(dtype: Any, saved: Meta, grads: Any) -> Any:
  del dtype, grads
  return None, saved


quantize_operand.defvjp(_quantize_operand_fwd, _quantize_operand_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def round_operand(x: Array, meta: Meta, dtype: Any) -> Array:
  """Returns `x` fake-quantized, with a straight-through gradient."""
  return _round(x, _next_scale(meta, dtype), dtype)


def _round_operand_fwd(x: Array, meta: Meta, dtype: Any) -> tuple[Array, Meta]:
  return round_operand(x, meta, dtype), _next_meta(x, meta, dtype)


def _round_operand_bwd(dtype: Any, saved: Meta, grad: Array) -> Any:
  del dtype
  return grad, saved


round_operand.defvjp(_round_operand_fwd, _round_operand_bwd)


@jax.custom_vjp
def round_gradient(y: Array, meta: Meta) -> Array:
  """Returns `y`; its gradient is fake-quantized."""
  del meta
  return y


def _round_gradient_fwd(y: Array, meta: Meta) -> tuple[Array, Meta]:
  return y, meta


def _round_gradient_bwd(meta: Meta, grad: Array) -> tuple[Array, Meta]:
  rounded = _round(grad, _next_scale(meta, E5M2), E5M2)
  return rounded, _next_meta(grad, meta, E5M2)


round_gradient.defvjp(_round_gradient_fwd, _round_gradient_bwd)


class Operand(NamedTuple):
  """A tensor, its fp8 values and their scale."""

  value: Array
  quantized: Array
  scale: Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def dot(
  eqn: einsum_equations.Equation, lhs: Operand, rhs: Operand, grad_meta: Meta
) -> Array:
  """Returns the einsum of fp8 operands; its gradients are fp8 einsums too.

  Gradients flow to `Operand.value`.
  """
  dtype = lhs.value.dtype
  product = einsum(str(eqn), lhs.quantized, rhs.quantized, dtype)
  return product * (lhs.scale * rhs.scale).astype(dtype)


def _dot_fwd(
  eqn: einsum_equations.Equation, lhs: Operand, rhs: Operand, grad_meta: Meta
) -> tuple[Array, Any]:
  return dot(eqn, lhs, rhs, grad_meta), (lhs, rhs, grad_meta)


def _dot_bwd(eqn: einsum_equations.Equation, saved: Any, grad: Array) -> Any:
  lhs, rhs, grad_meta = saved
  scale, dtype = _next_scale(grad_meta, E5M2), grad.dtype
  quantized = _quantize(grad, scale, E5M2)
  to_lhs = f'{eqn.out},{eqn.rhs}->{eqn.lhs}'
  to_rhs = f'{eqn.lhs},{eqn.out}->{eqn.rhs}'
  lhs_grad = einsum(to_lhs, quantized, rhs.quantized, dtype)
  rhs_grad = einsum(to_rhs, lhs.quantized, quantized, dtype)
  return (
    Operand(lhs_grad * (scale * rhs.scale).astype(dtype), None, None),
    Operand(rhs_grad * (scale * lhs.scale).astype(dtype), None, None),
    _next_meta(grad, grad_meta, E5M2),
  )


dot.defvjp(_dot_fwd, _dot_bwd)


def einsum(eqn: str, lhs: Array, rhs: Array, dtype: Any) -> Array:
  """Returns an einsum of operands of different dtypes, in `dtype`."""
  numbers, order = einsum_equations.einsum_eqn_to_dimension_numbers(eqn)
  product = lax.dot_general(lhs, rhs, numbers, preferred_element_type=dtype)
  return product if order is None else lax.transpose(product, order)


def _as_floats(meta: Meta) -> Meta:
  return Meta(*(lax.convert_element_type(x, jnp.float32) for x in meta))


def _next_scale(meta: Meta, dtype: Any) -> Array:
  """Returns the scale that maps the maximum of the history to the range."""
  meta = _as_floats(meta)
  amax = jnp.max(meta.history)
  is_valid = (amax > 0.0) & jnp.isfinite(amax)
  return jnp.where(is_valid, amax / float(jnp.finfo(dtype).max), meta.scale)


def _next_meta(x: Array, meta: Meta, dtype: Any) -> Meta:
  amax = jnp.max(jnp.abs(x)).astype(jnp.float32)
  history = jnp.roll(_as_floats(meta).history, -1).at[0].set(amax)
  values = Meta(_next_scale(meta, dtype), history)
  # Gradients have the dtype of the variables.
  return jax.tree.map(
    lambda new, old: lax.convert_element_type(new, old.dtype), values, meta
  )


def _quantize(x: Array, scale: Array, dtype: Any) -> Array:
  bound = float(jnp.finfo(dtype).max)
  return jnp.clip(x / scale.astype(x.dtype), -bound, bound).astype(dtype)


def _round(x: Array, scale: Array, dtype: Any) -> Array:
  return _quantize(x, scale, dtype).astype(x.dtype) * scale.astype(x.dtype)
