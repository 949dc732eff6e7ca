# SPDX-License-Identifier: Apache-2.0
"""What becomes of weights on their way to the stages of a pipeline."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from praxis import pytypes


def to_float32(tree: Any) -> Any:
  """Returns the tree with its bfloat16 arrays as float32."""

  def one(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x

  return jax.tree.map(one, tree)


def of_repeat(weights: Any, repeat: pytypes.JTensor) -> Any:
  """Returns [stages, ...] of weights [repeats, stages, ...]."""

  def pick(weight: jax.Array) -> jax.Array:
    if jnp.issubdtype(weight.dtype, jax.dtypes.extended):
      return _pick_maximum(weight, repeat)
    return _pick(weight, repeat)

  return jax.tree.map(pick, weights)


def _pick(weight: jax.Array, repeat: pytypes.JTensor) -> jax.Array:
  def of_stage(weight: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(weight, index, 0, keepdims=False)

  return jax.vmap(of_stage, in_axes=(1, 0))(weight, repeat)


# Weights whose gradients combine by maximum are of flax's type fm32, which JAX
# cannot gather.
@jax.custom_vjp
def _pick_maximum(weight: jax.Array, repeat: pytypes.JTensor) -> jax.Array:
  floats = jax.lax.convert_element_type(weight, jnp.float32)
  return jax.lax.convert_element_type(_pick(floats, repeat), weight.dtype)


def _pick_maximum_fwd(weight: jax.Array, repeat: pytypes.JTensor) -> Any:
  indices = jnp.arange(weight.shape[0])[:, jnp.newaxis]
  return _pick_maximum(weight, repeat), indices == repeat


def _pick_maximum_bwd(here: jax.Array, grad: jax.Array) -> Any:
  floats = jax.lax.convert_element_type(grad, jnp.float32)
  here = here.reshape(*here.shape, *(1,) * (grad.ndim - 1))
  # The maximum of nothing where another repeat was picked.
  floats = jnp.where(here, floats, -jnp.inf)
  return jax.lax.convert_element_type(floats, grad.dtype), None


_pick_maximum.defvjp(_pick_maximum_fwd, _pick_maximum_bwd)
