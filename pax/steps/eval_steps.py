# SPDX-License-Identifier: Apache-2.0
"""Steps that leave the train state unchanged: eval, decode and inference."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pax import tasks_lib, train_states
from pax.steps import forward as forward_lib
from pax.steps import replicas
from pax.steps.step_types import Batch, StepOutput, make_output
from praxis import base_layer, py_utils, pytypes

Nested = pytypes.Nested
NestedMap = pytypes.NestedMap


def eval_step(
  task: tasks_lib.SingleTask,
  state: train_states.TrainState,
  batch: Batch,
  key: jax.Array,
  *,
  var_weight_hparams: Nested[base_layer.WeightHParams],
  axis_name: str | None = None,
) -> StepOutput:
  """Returns loss, metrics and per-example outputs of the model on a batch.

  Args:
    task: The task whose model is evaluated.
    state: The train state; optimizer states may be absent.
    batch: The global batch; with `axis_name` the batch of one replica.
    key: PRNG key of the job; `state.step` is folded in.
    var_weight_hparams: The WeightHParams of each variable in `state.mdl_vars`.
    axis_name: Mesh axis of the replicas; None for SPMD.
  """
  key = jax.random.fold_in(key, state.step)
  with forward_lib.context(task, do_eval=True):
    outputs = forward_lib.forward(
      task,
      state.mdl_vars,
      batch,
      forward_lib.make_rngs(key, axis_name),
      var_weight_hparams=var_weight_hparams,
      mutable=task.evaluate.apply_mutable_list,
    )
  summaries = forward_lib.layer_summaries(outputs.updated_vars)
  return make_output(
    outputs.mean_loss,
    replicas.mean_scalars(outputs.weighted_scalars, axis_name),
    replicas.mean_summaries(summaries, axis_name),
    outputs.per_example_out,
  )


def decode_step(
  task: tasks_lib.SingleTask,
  state: train_states.TrainState,
  batch: Batch,
  key: jax.Array,
  *,
  var_weight_hparams: Nested[base_layer.WeightHParams],
  axis_name: str | None = None,
) -> StepOutput:
  """Returns the output of `model.decode` on a batch, with loss 0.

  Provenance entries of the batch, which identify examples, are copied to the
  per-example outputs.

  Args:
    task: The task whose model decodes.
    state: The train state; optimizer states may be absent.
    batch: The global batch; with `axis_name` the batch of one replica.
    key: PRNG key of the job; `state.step` is folded in.
    var_weight_hparams: The WeightHParams of each variable in `state.mdl_vars`.
    axis_name: Mesh axis of the replicas; None for SPMD.
  """
  key = jax.random.fold_in(key, state.step)
  mdl_vars, batch = forward_lib.cast_to_fprop_dtype(
    task, state.mdl_vars, batch, var_weight_hparams
  )
  provenance, batch = py_utils.filter_by_matching_keys(
    batch, [py_utils.PROVENANCE_PREFIX]
  )
  with forward_lib.context(task, do_eval=True):
    (scalars, per_example_out, *more_metrics), updated_vars = task.model.apply(
      mdl_vars,
      batch,
      method='decode',
      mutable=list(task.decode.apply_mutable_list),
      rngs=forward_lib.make_rngs(key, axis_name),
    )
  for metrics in more_metrics:
    scalars = {**scalars, **metrics}
  summaries = forward_lib.layer_summaries(updated_vars)
  return make_output(
    jnp.zeros([], jnp.float32),
    replicas.mean_scalars(forward_lib.float32_pairs(scalars), axis_name),
    replicas.mean_summaries(summaries, axis_name),
    NestedMap({**per_example_out, **provenance}),
  )


def infer_step(
  task: tasks_lib.SingleTask,
  state: train_states.TrainState,
  batch: Batch,
  key: jax.Array,
  *,
  var_weight_hparams: Nested[base_layer.WeightHParams],
  axis_name: str | None = None,
) -> NestedMap:
  """Returns the inference runner's outputs, one row per example.

  Args:
    task: The task with the inference runner.
    state: The train state; optimizer states may be absent.
    batch: The global batch; with `axis_name` the batch of one replica.
    key: PRNG key of the batch.
    var_weight_hparams: The WeightHParams of each variable in `state.mdl_vars`.
    axis_name: Mesh axis of the replicas; None for SPMD.
  """
  key = forward_lib.replica_key(key, axis_name)
  with forward_lib.context(task, do_eval=True):
    return task.inference_runner.infer(state, key, var_weight_hparams, batch)
