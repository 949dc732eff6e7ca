# SPDX-License-Identifier: Apache-2.0
"""Steps with the signature of `partitioning.StepFn`, for any caller.

They run as they are, under `jax.jit`, under `jax.pmap` over the axis `batch`,
and partitioned. Under pmap their outputs are equal on all replicas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pax import tasks_lib, train_states
from pax.steps import eval_steps, replicas
from pax.steps import forward as forward_lib
from pax.steps.declared_variables import declare_variables
from pax.steps.hooks import ApplyFnProtocol, GradFnProtocol, TrainStepHooks
from pax.steps.step_settings import StepSettings
from pax.steps.step_types import BaseStepFnStaticArgs, Batch, StepFnOutput
from pax.steps.train_step import train_step
from pax.train_states import Variables
from praxis import base_layer, base_model, pytypes

JTensor = pytypes.JTensor
NestedMap = pytypes.NestedMap
TrainState = train_states.TrainState


def train_step_single_learner(
  jax_task: tasks_lib.SingleTask,
  states: TrainState,
  prng_key: jax.Array,
  inputs: Batch,
  fprop_dtype: jnp.dtype = jnp.float32,
  var_weight_hparams: Variables[base_layer.WeightHParams] | None = None,
  static_args: BaseStepFnStaticArgs | None = None,
  *,
  grad_fn: GradFnProtocol | None = None,
  apply_fn: ApplyFnProtocol | None = None,
  expose_updated_nontrainables_to_learner: bool = True,
) -> tuple[TrainState, StepFnOutput]:
  """Returns the state after one update, and the output of the step.

  Args:
    jax_task: The task.
    states: The state.
    prng_key: PRNG key; `states.step` is folded in.
    inputs: The batch; under pmap that of one replica.
    fprop_dtype: dtype of activations: float32 or bfloat16.
    var_weight_hparams: WeightHParams of the variables; None derives them from
      the batch.
    static_args: Unused.
    grad_fn: Computes the gradients; None is the learner's gradient function.
    apply_fn: Applies the model; None calls it. A `grad_fn` may ignore it.
    expose_updated_nontrainables_to_learner: Whether the optimizer has the
      non-trainable variables of this forward pass instead of the previous ones.
  """
  del static_args
  settings = dataclasses.replace(
    _settings(jax_task, inputs, fprop_dtype, var_weight_hparams),
    hooks=TrainStepHooks(
      grad_fn=grad_fn,
      apply_fn=apply_fn,
      expose_updated_nontrainables=expose_updated_nontrainables_to_learner,
    ),
  )
  new_states, output = train_step(settings, states, inputs, prng_key)
  return new_states, _gather(output, settings.axis_name)


def eval_step_single_learner(
  jax_task: tasks_lib.SingleTask,
  states: TrainState,
  prng_key: jax.Array,
  inputs: Batch,
  fprop_dtype: jnp.dtype = jnp.float32,
  var_weight_hparams: Variables[base_layer.WeightHParams] | None = None,
  static_args: BaseStepFnStaticArgs | None = None,
) -> tuple[None, StepFnOutput]:
  """Returns (None, loss and metrics of the model on a batch).

  Args:
    jax_task: The task.
    states: The state; optimizer states may be absent.
    prng_key: PRNG key; `states.step` is folded in.
    inputs: The batch; under pmap that of one replica.
    fprop_dtype: dtype of activations: float32 or bfloat16.
    var_weight_hparams: WeightHParams of the variables; None derives them from
      the batch.
    static_args: Unused.
  """
  del static_args
  settings = _settings(
    jax_task,
    inputs,
    fprop_dtype,
    var_weight_hparams,
    do_eval=not jax_task.train.always_use_train_for_model_init,
  )
  output = eval_steps.eval_step(settings, states, inputs, prng_key)
  if fprop_dtype == jnp.bfloat16:
    output = forward_lib.to_float32(output)
  return None, _gather(output, settings.axis_name)


def decode_step(
  model: base_model.BaseModel,
  states: TrainState,
  prng_key: jax.Array,
  var_weight_hparams: Variables[base_layer.WeightHParams],
  inputs: Batch,
  fprop_dtype: jnp.dtype = jnp.float32,
  apply_mutable_list: Sequence[str] = (
    base_layer.DECODE_CACHE,
    base_layer.SUMMARIES,
  ),
  decode_method: str = 'decode',
) -> tuple[tuple[Any, NestedMap, Mapping[str, Any]], Variables[JTensor]]:
  """Returns the outputs of the decoder, and the updated variables.

  The outputs are (weighted scalars, outputs per example, clu metrics), of one
  replica under pmap.

  Args:
    model: The model.
    states: The state without optimizer states.
    prng_key: PRNG key; `states.step` is folded in.
    var_weight_hparams: WeightHParams of the variables.
    inputs: The batch.
    fprop_dtype: dtype of activations: float32 or bfloat16.
    apply_mutable_list: Variable collections that the decoder may update.
    decode_method: Name of the method of the model.
  """
  prng_key = jax.random.fold_in(prng_key, states.step)
  mdl_vars, inputs = forward_lib.cast_to_fprop_dtype(
    fprop_dtype, states.mdl_vars, inputs, var_weight_hparams
  )
  hparams = base_layer.JaxContext.HParams(do_eval=True, summary_verbosity=2)
  with base_layer.JaxContext.new_context(hparams=hparams):
    outputs, updated_vars = eval_steps.apply_decoder(
      model,
      mdl_vars,
      inputs,
      forward_lib.make_rngs(prng_key, replicas.current_axis_name()),
      mutable=apply_mutable_list,
      method=decode_method,
    )
  # Callers do not read the cache, which may be large.
  updated_vars.pop(base_layer.DECODE_CACHE, None)
  if summaries := updated_vars.get(base_layer.SUMMARIES):
    updated_vars[base_layer.SUMMARIES] = forward_lib.to_float32(summaries)
  return outputs, updated_vars


def decode_step_single_learner(
  jax_task: tasks_lib.SingleTask,
  states: TrainState,
  prng_key: jax.Array,
  inputs: Batch,
  fprop_dtype: jnp.dtype = jnp.float32,
  var_weight_hparams: Variables[base_layer.WeightHParams] | None = None,
  *static_args: BaseStepFnStaticArgs | None,
) -> tuple[None, StepFnOutput]:
  """Returns (None, output of `model.decode` on a batch).

  Args:
    jax_task: The task.
    states: The state; optimizer states may be absent.
    prng_key: PRNG key; `states.step` is folded in.
    inputs: The batch; under pmap that of one replica.
    fprop_dtype: dtype of activations: float32 or bfloat16.
    var_weight_hparams: WeightHParams of the variables; None derives them from
      the batch.
    *static_args: Unused.
  """
  del static_args
  settings = _settings(jax_task, inputs, fprop_dtype, var_weight_hparams)
  output = eval_steps.decode_step(settings, states, inputs, prng_key)
  return None, _gather(output, settings.axis_name)


def _settings(
  task: tasks_lib.SingleTask,
  inputs: Batch,
  fprop_dtype: jnp.dtype,
  var_weight_hparams: Variables[base_layer.WeightHParams] | None,
  *,
  do_eval: bool = False,
) -> StepSettings:
  """Returns the settings of a step; declares the variables if they are None."""
  if var_weight_hparams is None:
    var_weight_hparams = declare_variables(task.model, inputs, do_eval=do_eval)
  return StepSettings(
    task=task,
    var_weight_hparams=var_weight_hparams,
    axis_name=replicas.current_axis_name(),
    fprop_dtype=fprop_dtype,
  )


def _gather(output: StepFnOutput, axis_name: str | None) -> StepFnOutput:
  """Returns the output with the rows of all replicas."""
  rows = replicas.gather_rows(output.per_example_out, axis_name)
  return dataclasses.replace(output, per_example_out=rows)
