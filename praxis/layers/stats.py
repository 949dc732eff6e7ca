# SPDX-License-Identifier: Apache-2.0
"""Statistics of activations, for monitoring."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

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
  if padding is None:
    padding = jnp.zeros([1] * inputs.ndim)
  if padding.ndim != inputs.ndim:
    raise ValueError(
      f'padding must have the rank of inputs {inputs.shape}, got '
      f'{padding.shape}; add dimensions of size 1'
    )
  inputs = inputs.astype(jnp.float32)
  mask = (1.0 - padding).astype(jnp.float32)
  if inputs.ndim and mask.shape[-1] == 1:
    return _stats_of_vectors(inputs, mask)
  return _stats_of_scalars(inputs, jnp.broadcast_to(mask, inputs.shape))


def _stats_of_vectors(
  inputs: Float[Array, '*B D'], mask: Float[Array, '...']
) -> NestedMap:
  """Returns the statistics of vectors that are padding as a whole.

  Mean and variance of each vector are those of a layer norm, which XLA computes
  once for both; those of all vectors follow by the law of total variance.
  """
  mask = jnp.broadcast_to(mask, (*inputs.shape[:-1], 1))
  count = jnp.maximum(1.0, jnp.sum(mask))
  means = jnp.mean(inputs, axis=-1, keepdims=True)
  variances = jnp.mean(jnp.square(inputs - means), axis=-1, keepdims=True)
  mean = jnp.sum(means * mask) / count
  variance = jnp.sum((variances + jnp.square(means - mean)) * mask) / count
  maxima = jnp.max(jnp.abs(inputs), axis=-1, keepdims=True)
  return NestedMap(
    mean_v=mean, std_v=jnp.sqrt(variance), max_v=jnp.max(maxima * mask)
  )


def _stats_of_scalars(
  inputs: Float[Array, '*B'], mask: Float[Array, '*B']
) -> NestedMap:
  count = jnp.maximum(1.0, jnp.sum(mask))
  mean = jnp.sum(inputs * mask) / count
  variance = jnp.sum(jnp.square((inputs - mean) * mask)) / count
  return NestedMap(
    mean_v=mean, std_v=jnp.sqrt(variance), max_v=jnp.max(jnp.abs(inputs * mask))
  )
