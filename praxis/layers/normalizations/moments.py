# SPDX-License-Identifier: Apache-2.0
"""Means and variances without padding."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from praxis import base_layer


def compute_moments(
  inputs: Float[Array, '...'],
  padding: Num[Array, '...'],
  reduce_over_dims: Sequence[int],
  cumulative_axis: int | None = None,
  keepdims: bool = False,
  *,
  sync_replicas: bool = True,
) -> tuple[Float[Array, '...'], Float[Array, '...']]:
  """Returns mean and variance over `reduce_over_dims`, in float32.

  Both are 0 if everything is padding.

  Args:
    inputs: any shape.
    padding: 1 at padding; broadcast to `inputs`.
    reduce_over_dims: the reduced dimensions.
    cumulative_axis: a dimension along which moments are cumulative.
    keepdims: whether the reduced dimensions remain with size 1.
    sync_replicas: whether to reduce over pmap replicas too.
  """
  mask = jnp.broadcast_to(1.0 - padding.astype(jnp.float32), inputs.shape)
  x = inputs.astype(jnp.float32)

  def total(values: Array) -> Array:
    values = jnp.sum(values, axis=tuple(reduce_over_dims), keepdims=True)
    if cumulative_axis is not None:
      values = jnp.cumsum(values, axis=cumulative_axis)
    if sync_replicas and base_layer.is_running_under_pmap():
      values = jax.lax.psum(values, base_layer.PMAP_PARALLEL_AXIS_NAME)
    return values

  count = jnp.maximum(total(mask), 1.0)
  mean = total(x * mask) / count
  variance = total(jnp.square(x - mean) * mask) / count
  if keepdims:
    return mean, variance
  dims = tuple(reduce_over_dims)
  return jnp.squeeze(mean, dims), jnp.squeeze(variance, dims)
