# SPDX-License-Identifier: Apache-2.0
"""Forward pass of training and evaluation: dtypes, PRNG keys, loss."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from pax import base_metrics, tasks_lib
from pax.steps import summary_paths
from pax.steps.step_settings import StepSettings
from pax.steps.step_types import Batch, CluMetrics
from pax.train_states import Variables
from praxis import base_layer, base_model, pytypes
from praxis.pytypes import Nested

JTensor = pytypes.JTensor
NestedMap = pytypes.NestedMap
# A pytree of arrays.
_TreeT = TypeVar('_TreeT')


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Forward:
  """Results of one forward pass."""

  # Loss to differentiate; over replicas the terms sum to `mean_loss`. Float32
  # scalars.
  weighted_loss: JTensor
  mean_loss: JTensor
  # Weight of the loss, over replicas the share of this replica; None if the
  # loss has several weights.
  loss_weight: JTensor | None
  # (value, weight) by name, float32 scalars.
  weighted_scalars: NestedMap
  # Other metrics by name.
  clu_metrics: CluMetrics
  # Arrays [B, ...] by name.
  per_example_out: NestedMap
  # Variable collections that the model updated.
  updated_vars: Variables[JTensor]


def forward(
  settings: StepSettings,
  mdl_vars: Variables[JTensor],
  batch: Batch,
  rngs: dict[str, jax.Array],
  *,
  mutable: Sequence[str],
) -> Forward:
  """Applies the model to a batch and aggregates the loss.

  Args:
    settings: The task, and how it runs.
    mdl_vars: Variables by collection.
    batch: The global batch, or the batch of one replica.
    rngs: PRNG keys of `make_rngs`.
    mutable: Variable collections that the model may update.
  """
  mdl_vars, batch = cast_inputs(settings, mdl_vars, batch)
  task, apply_fn = settings.task, settings.hooks.apply_fn or apply_model
  (metrics, per_example_out), updated_vars = apply_fn(
    model=task.model,
    variables=mdl_vars,
    inputs=batch,
    mutable=list(mutable),
    rngs=rngs,
  )
  weighted, mean, weight = task.loss_aggregator_inst.aggregate(metrics)
  scalars, clu_metrics = split_metrics(metrics)
  return Forward(
    weighted_loss=weighted,
    mean_loss=mean,
    loss_weight=weight,
    weighted_scalars=scalars,
    clu_metrics=clu_metrics,
    per_example_out=per_example_out,
    updated_vars=dict(updated_vars),
  )


def apply_model(
  model: base_model.BaseModel,
  variables: Variables[JTensor],
  inputs: Batch,
  mutable: Sequence[str],
  rngs: dict[str, jax.Array],
) -> tuple[Any, Nested[JTensor]]:
  """Returns (metrics, outputs per example) of the model, and updated variables.

  Args:
    model: The model.
    variables: Variables by collection.
    inputs: The batch.
    mutable: Variable collections that the model may update.
    rngs: PRNG keys of `make_rngs`.
  """
  return model.apply(variables, inputs, mutable=mutable, rngs=rngs)


def cast_inputs(
  settings: StepSettings, mdl_vars: Variables[JTensor], batch: Batch
) -> tuple[Variables[JTensor], Batch]:
  """Returns variables and batch in the dtypes of the forward pass of a task.

  Args:
    settings: The task, and how it runs.
    mdl_vars: Variables by collection.
    batch: The batch.
  """
  return cast_to_fprop_dtype(
    settings.activation_dtype,
    mdl_vars,
    batch,
    settings.var_weight_hparams,
    float32_inputs=settings.task.model.FLOAT32_INPUTS,
  )


def cast_to_fprop_dtype(
  fprop_dtype: jnp.dtype,
  mdl_vars: Variables[JTensor],
  batch: Batch,
  var_weight_hparams: Variables[base_layer.WeightHParams],
  *,
  float32_inputs: Collection[str] = (),
) -> tuple[Variables[JTensor], Batch]:
  """Returns variables and batch cast to the dtype of the forward pass.

  With bfloat16, float32 inputs and parameters are cast, except parameters with
  the flag DISALLOW_BFLOAT16_CONVERSION; gradients are those of the float32
  parameters. Non-trainable variables keep their dtype: in bfloat16 small
  updates of a moving average round to zero.

  Args:
    fprop_dtype: float32 or bfloat16.
    mdl_vars: Variables by collection.
    batch: The batch.
    var_weight_hparams: WeightHParams of each variable.
    float32_inputs: Fields of the batch that are not cast.
  """
  if fprop_dtype != jnp.bfloat16:
    return mdl_vars, batch
  params = jax.tree.map(
    _weight_to_bfloat16,
    var_weight_hparams[base_layer.PARAMS],
    mdl_vars[base_layer.PARAMS],
  )
  uncast = {name: batch[name] for name in float32_inputs if name in batch}
  batch = jax.tree.map(_to_bfloat16, batch)
  if uncast:
    batch = NestedMap({**batch, **uncast})
  return {**mdl_vars, base_layer.PARAMS: params}, batch


def context(
  task: tasks_lib.SingleTask, *, do_eval: bool
) -> contextlib.AbstractContextManager[base_layer.JaxContext]:
  """Returns the JaxContext of a step of the task."""
  hparams = base_layer.JaxContext.HParams(
    do_eval=do_eval, summary_verbosity=task.summary_verbosity
  )
  return base_layer.JaxContext.new_context(hparams=hparams)


def replica_key(key: jax.Array, axis_name: str | None) -> jax.Array:
  """Returns a key that is different on each replica."""
  if axis_name is None:
    return key
  return jax.random.fold_in(key, jax.lax.axis_index(axis_name))


def make_rngs(
  key: jax.Array, axis_name: str | None = None
) -> dict[str, jax.Array]:
  """Returns the PRNG key of each stream, different on each replica."""
  key = replica_key(key, axis_name)
  params, random, dropout = jax.random.split(key, 3)
  return {
    base_layer.PARAMS: params,
    base_layer.RANDOM: random,
    base_layer.NON_PAX_RNG_KEY: dropout,
  }


def layer_summaries(
  updated_vars: Variables[JTensor],
) -> dict[str, JTensor]:
  """Returns the summaries of layers by slash path.

  Those of repeated layers are lists of arrays [1, ...]; results have no such
  leading axis.
  """
  summaries = updated_vars.get(base_layer.SUMMARIES, {})
  squeezed = jax.tree.map(_squeeze_layers, summaries, is_leaf=_is_list)
  return summary_paths.flatten_flax_summaries(squeezed)


def _is_list(x: Any) -> bool:
  return isinstance(x, list)


def _squeeze_layers(value: Any) -> Any:
  if not isinstance(value, list):
    return value
  layers = [_squeeze_layers(layer) for layer in value]
  return jax.tree.map(lambda x: x.squeeze(0), layers)


def _to_bfloat16(x: JTensor) -> JTensor:
  return x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x


def _weight_to_bfloat16(
  hparams: base_layer.WeightHParams, x: JTensor
) -> JTensor:
  if base_layer.var_disallow_bfloat16_conversion(hparams):
    return x
  return _to_bfloat16(x)


def split_metrics(metrics: Mapping[str, Any]) -> tuple[NestedMap, CluMetrics]:
  """Returns weighted scalars in float32 and clu metrics, by name.

  The weighted mean among clu metrics, WeightedScalarCluMetric, is in both.

  Raises:
    ValueError: An entry is neither a (value, weight) pair nor a clu metric.
  """
  pairs, clu_metrics = NestedMap(), {}
  for name, metric in metrics.items():
    if hasattr(metric, 'merge') and hasattr(metric, 'compute'):
      clu_metrics[name] = metric
    if isinstance(metric, base_metrics.WeightedScalarCluMetric):
      metric = metric.compute(), metric.weight
    if isinstance(metric, tuple) and len(metric) == 2:
      value, weight = metric
      pairs[name] = (
        jnp.asarray(value, jnp.float32),
        jnp.asarray(weight, jnp.float32),
      )
    elif name not in clu_metrics:
      raise ValueError(
        f'weighted scalar {name!r} must be a (value, weight) pair, got '
        f'{metric!r}; return it from compute_loss with a weight'
      )
  return pairs, clu_metrics


def to_float32(tree: _TreeT) -> _TreeT:
  """Returns the tree with bfloat16 arrays cast to float32."""
  return jax.tree.map(
    lambda x: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x, tree
  )
