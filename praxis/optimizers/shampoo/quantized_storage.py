# SPDX-License-Identifier: Apache-2.0
"""How Shampoo keeps tensors: as float32, or as integers with scales."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis.optimizers import masked_trees, quantized_moments


class Stored(NamedTuple):
  """A tensor; `BpropMaskedNode` stands for what its format does without."""

  # The tensor, or integers.
  values: Any
  # What the integers are multiples of, for each column.
  scale: Any = masked_trees.BpropMaskedNode()
  # The diagonal of a matrix, whose integers then have none.
  diagonal: Any = masked_trees.BpropMaskedNode()


def store(x: Float[Array, ...], dtype: str) -> Stored:
  """Returns `x` as float32 or int8; int8 needs a dimension."""
  return Stored(*quantized_moments.to_quantized(x, dtype))


def store_matrices(x: Float[Array, 'K N N'], dtype: str) -> Stored:
  """Returns symmetric matrices as float32, or as int16 and a diagonal."""
  if dtype == 'float32':
    return store(x, dtype)
  diagonal = jnp.diagonal(x, axis1=1, axis2=2)
  rest = x - diagonal[:, None] * jnp.eye(x.shape[1])
  values, scale = quantized_moments.to_quantized(
    jnp.swapaxes(rest, 0, 1), dtype
  )
  return Stored(jnp.swapaxes(values, 0, 1), scale, diagonal)


def load(stored: Stored) -> Float[Array, ...]:
  """Returns the tensor as float32."""
  if masked_trees.is_masked(stored.diagonal):
    return quantized_moments.to_float(stored.values, stored.scale)
  rest = stored.values.astype(jnp.float32) * stored.scale[:, None]
  return rest + stored.diagonal[:, None] * jnp.eye(rest.shape[1])
