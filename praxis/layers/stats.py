# SPDX-License-Identifier: Apache-2.0
"""Statistics of activations, for monitoring."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Shaped

from praxis.alias_names import module_getattr
from praxis.nested_map import NestedMap

__getattr__ = module_getattr(__name__)


def compute_stats(
  inputs: Shaped[Array, '*shape'], padding: Shaped[Array, '...'] | None = None
) -> NestedMap:
  """Returns mean_v, std_v and max_v (of absolute values) without padding.

  Args:
    inputs: activations.
    padding: 1 for padding; of the rank of `inputs`, dimensions of size 1 are
      broadcast.

  Returns:
    A map of float32 scalars.

  Raises:
    ValueError: the ranks differ.
  """
  inputs = inputs.astype(jnp.float32)
  if padding is None:
    padding = jnp.zeros([1] * inputs.ndim)
  if padding.ndim != inputs.ndim:
    raise ValueError(
      f'padding must have the rank of inputs {inputs.shape}, got '
      f'{padding.shape}; add dimensions of size 1'
    )
  mask = jnp.broadcast_to(1.0 - padding, inputs.shape).astype(jnp.float32)
  count = jnp.maximum(1.0, jnp.sum(mask))
  mean = jnp.sum(inputs * mask) / count
  variance = jnp.sum(jnp.square((inputs - mean) * mask)) / count
  return NestedMap(
    mean_v=mean, std_v=jnp.sqrt(variance), max_v=jnp.max(jnp.abs(inputs * mask))
  )
