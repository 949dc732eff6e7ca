# SPDX-License-Identifier: Apache-2.0
"""Storage of Shampoo's tensors as float32 or as scaled integers."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis.optimizers import masked_trees, quantized_moments


class Stored(NamedTuple):
  """A stored tensor; unused fields are `BpropMaskedNode`s."""

  # float32 or integer values.
  values: Any
  # The scale of integers, per column.
  scale: Any = masked_trees.BpropMaskedNode()
  # The diagonal of a matrix, which is zero in the integers.
  diagonal: Any = masked_trees.BpropMaskedNode()


def store(x: Float[Array, ...], dtype: str) -> Stored:
  """Stores `x` as float32 or int8."""
  return Stored(*quantized_moments.to_quantized(x, dtype))


def store_matrices(x: Float[Array, 'K N N'], dtype: str) -> Stored:
  """Stores symmetric matrices as float32, or as int16 plus a diagonal."""
  if dtype == 'float32':
    return store(x, dtype)
  diagonal = jnp.diagonal(x, axis1=1, axis2=2)
  off_diagonal = x - diagonal[:, None] * jnp.eye(x.shape[1])
  values, scale = quantized_moments.to_quantized(
    jnp.swapaxes(off_diagonal, 0, 1), dtype
  )
  return Stored(jnp.swapaxes(values, 0, 1), scale, diagonal)


def load(stored: Stored) -> Float[Array, ...]:
  """Returns the tensor as float32."""
  if masked_trees.is_masked(stored.diagonal):
    return quantized_moments.to_float(stored.values, stored.scale)
  off_diagonal = stored.values.astype(jnp.float32) * stored.scale[:, None]
  identity = jnp.eye(off_diagonal.shape[1])
  return off_diagonal + stored.diagonal[:, None] * identity
