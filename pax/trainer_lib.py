# SPDX-License-Identifier: Apache-2.0
"""Steps, states and shapes as functions, where users of paxml look for them.

A run does not need these: it goes through `pax.partitioning`. They are for
tests and notebooks that hold a task in their hands.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import jax

from pax import learners, partitioning, steps, tasks_lib, train_states
from pax.programs.early_stopping import EarlyStoppingFn as EarlyStoppingFn
from pax.programs.program import BaseStepFnStaticArgs as BaseStepFnStaticArgs
from pax.programs.running_mode import RunningMode as RunningMode
from pax.steps.outputs import StepOutput as StepFnOutput
from praxis import (
  base_input,
  base_layer,
  base_model,
  pax_fiddle,
  py_utils,
  pytypes,
)

JTensor = pytypes.JTensor
Nested = pytypes.Nested
NestedMap = pytypes.NestedMap
PRNGKey = pytypes.PRNGKey
TrainState = train_states.TrainState
Task = tasks_lib.SingleTask


class ApplyFnProtocol(Protocol):
  """Runs a model."""

  def __call__(
    self,
    model: base_model.BaseModel,
    variables: Nested[JTensor],
    inputs: NestedMap,
    mutable: Sequence[str],
    rngs: dict[str, PRNGKey],
  ) -> Any:
    """Returns what the model returns, and the variables it changed."""


class LossFnProtocol(Protocol):
  """Computes a loss."""

  def __call__(
    self, mdl_vars: Nested[JTensor], inputs: NestedMap, prng_key: PRNGKey
  ) -> tuple[JTensor, learners.GradAuxInfo]:
    """Returns the loss, and what else is known of it."""


class GradFnProtocol(Protocol):
  """Differentiates a loss."""

  def __call__(
    self,
    loss_fn: LossFnProtocol,
    learner: learners.Learner,
    mdl_vars: Nested[JTensor],
    inputs: NestedMap,
    prng_key: PRNGKey,
  ) -> Any:
    """Returns ((loss, what else is known of it), gradients)."""


@dataclasses.dataclass(frozen=True)
class TrainStateMetadata:
  """What is known of a train state before there is one."""

  # Shapes of the batch that the variables are declared by.
  input_shape_dtype: Nested[jax.ShapeDtypeStruct]
  var_weight_hparams: Nested[Any]
  # Shapes of the whole arrays, as they lie on the devices and as they are.
  padded_global_shapes: TrainState | None = None
  unpadded_global_shapes: TrainState | None = None
  # How they are split; None without a mesh.
  partition_specs: TrainState | None = None


def create_train_state_metadata(
  jax_task: Task,
  train_shape_dtype: Nested[jax.ShapeDtypeStruct],
  discard_opt_states: bool = False,
  do_eval: bool = False,
) -> TrainStateMetadata:
  """Returns the shapes and partitions of a task's state.

  Arrays are split where that goes without padding them.
  """
  hparams = jax_task.model.abstract_init_with_metadata(
    train_shape_dtype, do_eval=do_eval
  )
  shapes = jax_task.create_train_state_unpadded_shapes(
    hparams, discard_opt_states
  )
  specs = None
  if jax_task.model.mesh_shape is not None:
    specs = jax_task.create_train_state_partition_specs(
      hparams, discard_opt_states
    )
  return TrainStateMetadata(train_shape_dtype, hparams, shapes, shapes, specs)


def initialize_model_state(
  jax_task: Task,
  prng_key: PRNGKey,
  inputs_shape_dtype: Nested[jax.ShapeDtypeStruct],
  discard_opt_states: bool = False,
) -> TrainState:
  """Returns the state that training starts with, on the devices it asks for.

  Checkpoints of other jobs are left aside: that is `--init_from`.
  """
  placed = partitioning.create_partitioner(jax_task, inputs_shape_dtype)
  state = placed.initialize(prng_key)
  return state.to_eval_state() if discard_opt_states else state


def train_step_single_learner(
  jax_task: Task,
  states: TrainState,
  prng_key: PRNGKey,
  inputs: NestedMap,
  var_weight_hparams: Nested[Any] | None = None,
) -> tuple[TrainState, StepFnOutput]:
  """Returns the state after one update, and what was computed for it."""
  return steps.train_step(
    jax_task,
    states,
    inputs,
    prng_key,
    var_weight_hparams=_declared(jax_task, inputs, var_weight_hparams),
  )


def eval_step_single_learner(
  jax_task: Task,
  states: TrainState,
  prng_key: PRNGKey,
  inputs: NestedMap,
  var_weight_hparams: Nested[Any] | None = None,
) -> StepFnOutput:
  """Returns the metrics of the model on a batch."""
  return steps.eval_step(
    jax_task,
    states,
    inputs,
    prng_key,
    var_weight_hparams=_declared(jax_task, inputs, var_weight_hparams),
  )


def decode_step(
  jax_task: Task,
  states: TrainState,
  prng_key: PRNGKey,
  inputs: NestedMap,
  var_weight_hparams: Nested[Any] | None = None,
) -> StepFnOutput:
  """Returns what the model decodes from a batch."""
  return steps.decode_step(
    jax_task,
    states,
    inputs,
    prng_key,
    var_weight_hparams=_declared(jax_task, inputs, var_weight_hparams),
  )


def replicate_model_state(model_states: TrainState) -> TrainState:
  """Returns the state whole on every device of this process."""
  mesh = jax.sharding.Mesh(jax.local_devices(), ('replica',))
  everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  return jax.device_put(model_states, everywhere)


def get_excluded_var_masks(
  var_weight_hparams: Nested[Any], learner: learners.Learner
) -> tuple[Nested[bool], Nested[bool]]:
  """Returns which variables have no gradient, and which no optimizer state."""
  learned = learner.bprop_mask(var_weight_hparams)
  no_gradient = jax.tree.map(lambda x: not x, learned)
  if not learner.keep_optimizer_state_for_excluded_vars:
    return no_gradient, no_gradient
  return no_gradient, jax.tree.map(
    lambda hp: not base_layer.var_is_trainable(hp), var_weight_hparams
  )


def get_inputs_shape_dtype(
  input_config: pax_fiddle.Config[base_input.BaseInput],
) -> tuple[Nested[jax.ShapeDtypeStruct], Nested[jax.ShapeDtypeStruct]]:
  """Returns the shapes of a batch of this host, and of all hosts together.

  It makes the input and takes a batch.
  """
  batch = input_config.Instantiate().get_next_padded()
  host = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
  return host, jax.tree.map(py_utils.get_global_input_shape_dtype, host)


def get_train_input_specs_for_model_init(
  task: Task, input_specs_provider: base_input.BaseInputSpecsProvider
) -> Nested[jax.ShapeDtypeStruct]:
  """Returns the shapes of a batch: of all hosts where the model has a mesh."""
  specs = input_specs_provider.get_input_specs()
  if task.model.mesh_shape is None:
    return specs
  return jax.tree.map(py_utils.get_global_input_shape_dtype, specs)


def check_unique_names(inputs: Sequence[base_input.BaseInput]) -> None:
  """Raises ValueError if two inputs have one name."""
  names = collections.Counter(inp.name for inp in inputs)
  if twice := [name for name, count in names.items() if count > 1]:
    raise ValueError(
      f'inputs must have names of their own, got {twice[0]!r} for'
      f' {names[twice[0]]} of them; set `name` in the config of one'
    )


def _declared(
  jax_task: Task, inputs: NestedMap, given: Nested[Any] | None
) -> Nested[Any]:
  if given is not None:
    return given
  return jax_task.model.abstract_init_with_metadata(inputs)
