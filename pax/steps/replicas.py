# SPDX-License-Identifier: Apache-2.0
"""Combines what the replicas of a step computed, each on its own batch.

Every function takes the axis name of the replicas, or None when there is one
program over the whole batch and nothing is left to combine.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pax import base_metrics
from praxis import base_layer, pytypes

JTensor = pytypes.JTensor
Nested = pytypes.Nested
NestedMap = pytypes.NestedMap


def psum(x: Nested[JTensor], axis_name: str) -> Nested[JTensor]:
  """Returns the sum over the replicas; a single one sums nothing."""
  return x if jax.lax.axis_size(axis_name) == 1 else jax.lax.psum(x, axis_name)


def pmean(x: JTensor, axis_name: str) -> JTensor:
  """Returns the mean over the replicas; a single one is its own."""
  return psum(x, axis_name) / jax.lax.axis_size(axis_name)


def mean_scalars(scalars: NestedMap, axis_name: str | None) -> NestedMap:
  """Returns each (value, weight) over all replicas, by one reduction."""
  if axis_name is None or not scalars:
    return scalars
  values, weights = (
    jnp.stack([pair[i] for pair in scalars.values()]) for i in (0, 1)
  )
  sums, weights = psum(jnp.stack([values * weights, weights]), axis_name)
  means = sums / jnp.maximum(weights, base_metrics.MIN_WEIGHT)
  return NestedMap(
    {name: (means[i], weights[i]) for i, name in enumerate(scalars)}
  )


def mean_summaries(
  summaries: dict[str, JTensor], axis_name: str | None
) -> dict[str, JTensor]:
  """Returns the summaries, float scalars as means over the replicas."""
  if axis_name is None:
    return summaries
  return {
    name: pmean(value, axis_name)
    if jnp.issubdtype(value.dtype, jnp.floating) and value.ndim == 0
    else value
    for name, value in summaries.items()
  }


def sync_non_trainables(
  new: Nested[JTensor],
  old: Nested[JTensor],
  var_weight_hparams: Nested[Any],
  axis_name: str | None,
) -> Nested[JTensor]:
  """Returns the variables that the forward pass wrote, equal on all replicas.

  Raises:
    ValueError: a variable has neither sync flag, and there are replicas.
  """

  def sync(hparams: Any, new_value: JTensor, old_value: JTensor) -> JTensor:
    if axis_name is not None:
      if base_layer.var_requires_mean_sync(hparams):
        new_value = pmean(new_value, axis_name)
      elif base_layer.var_requires_sum_sync(hparams):
        # Each replica adds what it saw to the same old value.
        seen = psum(new_value - old_value, axis_name)
        new_value = old_value + seen
      else:
        raise ValueError(
          f'a non-trainable variable of shape {hparams.shape} must have the '
          'flag REQUIRES_MEAN_SYNC or REQUIRES_SUM_SYNC to be trained on '
          f'several replicas, got {hparams.collections}; set it where the '
          'layer creates the variable, or set ici_mesh_shape'
        )
    return new_value.astype(old_value.dtype)

  return jax.tree.map(sync, var_weight_hparams, new, old)
