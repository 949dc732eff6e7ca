# SPDX-License-Identifier: Apache-2.0
"""Reductions over the data-parallel replicas of a step.

`axis_name` is the mesh axis of the replicas; None is SPMD, where results are
global already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from pax import base_metrics
from pax.steps.step_types import (
  CluMetrics,
  check_weighted_scalars,
  is_scalar_summary,
)
from praxis import base_layer, pytypes
from praxis.pytypes import Nested

JTensor = pytypes.JTensor
NestedMap = pytypes.NestedMap
_TreeT = TypeVar('_TreeT')


def current_axis_name() -> str | None:
  """Returns the axis of the replicas of the traced step; None under SPMD."""
  if base_layer.is_running_under_pmap():
    return base_layer.PMAP_PARALLEL_AXIS_NAME
  return None


def psum(x: _TreeT, axis_name: str) -> _TreeT:
  """Returns the sum over the replicas; without collectives if there is one."""
  return x if jax.lax.axis_size(axis_name) == 1 else jax.lax.psum(x, axis_name)


def pmean(x: JTensor, axis_name: str) -> JTensor:
  """Returns the mean over the replicas; without collectives if there is one."""
  return psum(x, axis_name) / jax.lax.axis_size(axis_name)


def mean_scalars(scalars: NestedMap, axis_name: str | None) -> NestedMap:
  """Returns (weighted mean, sum of weights) over the replicas by one psum.

  Raises:
    ValueError: There are replicas, and a value is an array.
  """
  if axis_name is None or not scalars:
    return scalars
  check_weighted_scalars(scalars)
  values, weights = (
    jnp.stack([pair[i] for pair in scalars.values()]) for i in (0, 1)
  )
  sums, weights = psum(jnp.stack([values * weights, weights]), axis_name)
  means = sums / jnp.maximum(weights, base_metrics.MIN_WEIGHT)
  return NestedMap(
    {name: (means[i], weights[i]) for i, name in enumerate(scalars)}
  )


def gather_rows(rows: _TreeT, axis_name: str | None) -> _TreeT:
  """Returns arrays [B / replicas, ...] as arrays [B, ...] on each replica."""
  if axis_name is None:
    return rows
  return jax.tree.map(
    lambda x: jax.lax.all_gather(x, axis_name, tiled=x.ndim > 0), rows
  )


def reduce_clu_metrics(
  metrics: CluMetrics, axis_name: str | None
) -> CluMetrics:
  """Returns clu metrics over all replicas."""
  if axis_name is None:
    return metrics
  return {
    name: jax.lax.all_gather(metric, axis_name).reduce()
    for name, metric in metrics.items()
  }


def mean_summaries(
  summaries: dict[str, JTensor], axis_name: str | None
) -> dict[str, JTensor]:
  """Returns the summaries with floats of scalars averaged over replicas."""
  if axis_name is None:
    return summaries
  return {
    name: pmean(value, axis_name)
    if jnp.issubdtype(value.dtype, jnp.floating) and is_scalar_summary(name)
    else value
    for name, value in summaries.items()
  }


def sync_non_trainables(
  new: Nested[JTensor],
  old: Nested[JTensor],
  var_weight_hparams: Nested[base_layer.WeightHParams],
  axis_name: str | None,
) -> Nested[JTensor]:
  """Returns non-trainable variables synchronized over the replicas.

  Args:
    new: Variables after the forward pass of this replica.
    old: Variables before it.
    var_weight_hparams: WeightHParams of each variable.
    axis_name: Mesh axis of the replicas.

  Raises:
    ValueError: A variable has no sync flag, and there are replicas.
  """

  def sync(
    hparams: base_layer.WeightHParams, new_value: JTensor, old_value: JTensor
  ) -> JTensor:
    if axis_name is None:
      return new_value.astype(old_value.dtype)
    return combine_non_trainable(
      hparams,
      new_value,
      old_value,
      mean=lambda x: pmean(x, axis_name),
      total=lambda x: psum(x, axis_name),
    )

  return jax.tree.map(sync, var_weight_hparams, new, old)


def combine_non_trainable(
  hparams: base_layer.WeightHParams,
  new: JTensor,
  old: JTensor,
  *,
  mean: Callable[[JTensor], JTensor],
  total: Callable[[JTensor], JTensor],
) -> JTensor:
  """Returns a variable that parts of a batch have updated.

  Args:
    hparams: WeightHParams of the variable.
    new: The values of the parts.
    old: The value before, for all parts.
    mean: Returns the mean over the parts.
    total: Returns the sum over the parts.

  Raises:
    ValueError: The variable has no sync flag.
  """
  if base_layer.var_requires_mean_sync(hparams):
    value = mean(new)
  elif base_layer.var_requires_sum_sync(hparams):
    value = old + total(new - old)
  else:
    raise ValueError(
      f'a non-trainable variable of shape {hparams.shape} must have the flag'
      ' REQUIRES_MEAN_SYNC or REQUIRES_SUM_SYNC to be trained on several'
      f' replicas or microbatches, got {hparams.collections}; set it where the'
      ' layer creates the variable, or set ici_mesh_shape and'
      ' gradient_accumulation_steps=1'
    )
  return value.astype(old.dtype)
