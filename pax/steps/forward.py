# SPDX-License-Identifier: Apache-2.0
"""The forward pass of training and evaluation: dtypes, randomness, loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pax import base_metrics, tasks_lib
from praxis import base_layer, pytypes

JTensor = pytypes.JTensor
Nested = pytypes.Nested
NestedMap = pytypes.NestedMap


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Forward:
  """What one pass over one batch computed."""

  # The loss to differentiate: of replicas, what adds up to the mean loss of
  # all, which is the second. Float32 scalars.
  weighted_loss: JTensor
  mean_loss: JTensor
  # The loss's weight; of replicas, the share of this one; None if there is no
  # such number.
  loss_weight: JTensor | None
  weighted_scalars: NestedMap
  per_example_out: NestedMap
  # The variable collections that the model wrote.
  updated_vars: dict[str, Any]


def forward(
  task: tasks_lib.SingleTask,
  mdl_vars: Nested[JTensor],
  batch: NestedMap,
  rngs: dict[str, jax.Array],
  *,
  var_weight_hparams: Nested[Any],
  mutable: Sequence[str],
) -> Forward:
  """Runs the model on a batch and makes the loss."""
  mdl_vars, batch = cast_to_fprop_dtype(
    task, mdl_vars, batch, var_weight_hparams
  )
  (scalars, per_example_out), updated_vars = task.model.apply(
    mdl_vars, batch, mutable=list(mutable), rngs=rngs
  )
  weighted, mean, weight = task.loss_aggregator_inst.aggregate(scalars)
  return Forward(
    weighted_loss=weighted,
    mean_loss=mean,
    loss_weight=weight,
    weighted_scalars=float32_pairs(scalars),
    per_example_out=per_example_out,
    updated_vars=dict(updated_vars),
  )


def cast_to_fprop_dtype(
  task: tasks_lib.SingleTask,
  mdl_vars: Nested[JTensor],
  batch: NestedMap,
  var_weight_hparams: Nested[Any],
) -> tuple[Nested[JTensor], NestedMap]:
  """Returns variables and batch in the dtypes that the model computes in.

  With a model that computes in bfloat16, float32 inputs and float32 parameters
  are cast to it first, parameters flagged DISALLOW_BFLOAT16_CONVERSION apart;
  gradients still reach the float32 parameters. Variables that the pass updates
  keep their dtype: an average kept in bfloat16 stops moving.
  """
  if task.model.fprop_dtype != jnp.bfloat16:
    return mdl_vars, batch
  params = jax.tree.map(
    _weight_to_bfloat16,
    var_weight_hparams[base_layer.PARAMS],
    mdl_vars[base_layer.PARAMS],
  )
  batch = jax.tree.map(_to_bfloat16, batch)
  return {**mdl_vars, base_layer.PARAMS: params}, batch


def context(task: tasks_lib.SingleTask, *, do_eval: bool) -> Any:
  """Returns the JaxContext in which a step of the task runs."""
  hparams = base_layer.JaxContext.HParams(
    do_eval=do_eval, summary_verbosity=task.summary_verbosity
  )
  return base_layer.JaxContext.new_context(hparams=hparams)


def replica_key(key: jax.Array, axis_name: str | None) -> jax.Array:
  """Returns the key of this replica; those of replicas are different."""
  if axis_name is None:
    return key
  return jax.random.fold_in(key, jax.lax.axis_index(axis_name))


def make_rngs(
  key: jax.Array, axis_name: str | None = None
) -> dict[str, jax.Array]:
  """Returns the key of each stream; those of replicas are different."""
  key = replica_key(key, axis_name)
  params, random, dropout = jax.random.split(key, 3)
  return {
    base_layer.PARAMS: params,
    base_layer.RANDOM: random,
    base_layer.NON_PAX_RNG_KEY: dropout,
  }


def layer_summaries(updated_vars: dict[str, Any]) -> dict[str, JTensor]:
  """Returns the summaries that layers recorded, by slash path."""
  summaries = updated_vars.get(base_layer.SUMMARIES, {})
  leaves = jax.tree_util.tree_flatten_with_path(summaries)[0]
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): value
    for path, value in leaves
  }


def _to_bfloat16(x: JTensor) -> JTensor:
  return x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x


def _weight_to_bfloat16(hparams: Any, x: JTensor) -> JTensor:
  if base_layer.var_disallow_bfloat16_conversion(hparams):
    return x
  return _to_bfloat16(x)


def float32_pairs(scalars: Any) -> NestedMap:
  """Returns the scalars as NestedMap of float32 pairs.

  Raises:
    ValueError: an entry is no (value, weight) pair.
  """
  pairs = NestedMap()
  for name, pair in scalars.items():
    if isinstance(pair, base_metrics.WeightedScalarCluMetric):
      pair = pair.compute(), pair.weight
    if not isinstance(pair, tuple) or len(pair) != 2:
      raise ValueError(
        f'weighted scalar {name!r} must be a (value, weight) pair, got '
        f'{pair!r}; return it from compute_loss with a weight'
      )
    value, weight = pair
    pairs[name] = (
      jnp.asarray(value, jnp.float32),
      jnp.asarray(weight, jnp.float32),
    )
  return pairs
