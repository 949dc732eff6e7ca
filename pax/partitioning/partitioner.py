# SPDX-License-Identifier: Apache-2.0
"""Puts a task on devices: its state, its batches, and its compiled steps."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from pax import steps, tasks_lib, train_states
from pax.partitioning import initialize, memory, pjit, pmap, specs
from pax.partitioning.batches import BatchPlacer
from pax.partitioning.partitioned_step import PartitionedStep
from pax.partitioning.placement import Placement
from praxis import base_layer, pax_fiddle, pytypes

Nested = pytypes.Nested
NestedMap = pytypes.NestedMap
TrainState = train_states.TrainState


def create_partitioner(
  task: pax_fiddle.Config | tasks_lib.SingleTask,
  input_spec: NestedMap,
  *,
  devices: Sequence[jax.Device] | None = None,
) -> Partitioner:
  """Returns the partitioner of a task, complete.

  The model runs SPMD when its `ici_mesh_shape` is set, else replicated.

  Args:
    task: The task or its Config.
    input_spec: Shapes and dtypes of the training batch of one host.
    devices: What to run on; all devices by default.

  Raises:
    ValueError: the mesh does not fit the devices, or the batch the mesh.
  """
  if isinstance(task, pax_fiddle.Config):
    task = task.Instantiate()
  if task.model.ici_mesh_shape is None:
    placement = pmap.replica_placement(task, devices)
  else:
    placement = pjit.spmd_placement(task, devices)
  return Partitioner(task, placement, input_spec)


class Partitioner:
  """A task, where its arrays lie, and its steps compiled for that."""

  def __init__(
    self,
    task: tasks_lib.SingleTask,
    placement: Placement,
    input_spec: NestedMap,
  ):
    self.task = task
    self.mesh = placement.mesh
    self.is_spmd = placement.axis_name is None
    self._placement = placement
    self._batches = BatchPlacer(placement)
    # Shapes, dtypes and shardings of a global training batch.
    self.input_spec = self._batches.global_spec(input_spec)
    # The declaration of each variable.
    self.var_weight_hparams = _declarations(task, self.input_spec)
    # Shapes, dtypes and shardings of the train state.
    self.state_metadata = specs.state_shardings(
      placement.state_specs(self.var_weight_hparams),
      task.create_train_state_unpadded_shapes(self.var_weight_hparams),
      self.mesh,
    )

  @property
  def devices(self) -> list[jax.Device]:
    """The devices of the mesh."""
    return list(self.mesh.devices.flat)

  @property
  def num_params(self) -> int:
    """The number of trainable scalars."""
    params = self.var_weight_hparams[base_layer.PARAMS]
    return sum(math.prod(leaf.full_shape) for leaf in jax.tree.leaves(params))

  def preflight(self) -> memory.MemoryReport:
    """Returns what memory the state takes; ValueError if it cannot fit."""
    return memory.check(self.state_metadata, self.devices)

  def initialize(self, key: jax.Array) -> TrainState:
    """Returns the state at step 0, sharded, drawn from `key`."""
    self.preflight()
    shardings = jax.tree.map(lambda x: x.sharding, self.state_metadata)
    init = functools.partial(
      initialize.init_state,
      self.task,
      self.var_weight_hparams,
      shardings.mdl_vars,
      self.input_spec,
    )
    init = jax.jit(
      init,
      out_shardings=shardings,
      compiler_options=initialize.compiler_options(
        self.devices, self.num_params
      ),
    )
    with jax.set_mesh(self.mesh):
      return init(key)

  def train_step(self) -> PartitionedStep:
    """Returns `(state, batch, key) -> (state, StepOutput)`; donates state."""
    return self._partition(
      steps.train_step,
      lambda state, output: (state, output),
      self.input_spec,
      donate_state=True,
    )

  def eval_step(self, input_spec: NestedMap | None = None) -> PartitionedStep:
    """Returns `(state, batch, key) -> StepOutput`.

    `input_spec` tells the shapes of a host's batch, if not those of training.
    """
    if input_spec is None:
      batch = self.input_spec
    else:
      batch = self._batches.global_spec(input_spec)
    return self._partition(
      steps.eval_step, lambda _, output: output, batch, donate_state=False
    )

  def put_batch(self, host_batch: NestedMap) -> NestedMap:
    """Returns a host's numpy batch on the mesh; any thread may call it."""
    return self._batches.put(host_batch)

  def run_on_mesh(self, fn: Callable[..., Any], *args: Any) -> Any:
    """Returns `fn(*args)`, with the mesh in scope for what it jits."""
    with jax.set_mesh(self.mesh):
      return fn(*args)

  def _partition(
    self,
    step: Callable[..., Any],
    outputs: Callable[[Any, steps.StepOutput], Any],
    batch: NestedMap,
    *,
    donate_state: bool,
  ) -> PartitionedStep:
    """Returns `step` over the whole batch, compiled for the mesh.

    `outputs` arranges (state, StepOutput) as the step returns them.
    """
    placement = self._placement

    def bound(state: TrainState, batch: NestedMap, key: jax.Array) -> Any:
      return step(
        self.task,
        state,
        batch,
        key,
        var_weight_hparams=self.var_weight_hparams,
        axis_name=placement.axis_name,
      )

    bound.__name__ = step.__name__
    everywhere = PartitionSpec()
    rows = placement.batch_spec(1)
    out_specs = outputs(everywhere, _output(everywhere, rows))
    shardings = jax.tree.map(lambda x: x.sharding, self.state_metadata)
    replicated = NamedSharding(self.mesh, everywhere)
    return PartitionedStep(
      placement.globalize(bound, out_specs),
      mesh=self.mesh,
      state=self.state_metadata,
      batch=batch,
      # Rows of examples are left where the compiler puts them.
      out_shardings=outputs(shardings, _output(replicated, None)),
      donate_state=donate_state,
    )


def _output(scalars: Any, examples: Any) -> steps.StepOutput:
  """Returns a StepOutput that says the same of all scalars."""
  return steps.StepOutput(
    loss=scalars,
    scalars=scalars,
    tensors=scalars,
    per_example_out=examples,
  )


def _declarations(
  task: tasks_lib.SingleTask, input_spec: NestedMap
) -> Nested[Any]:
  """Returns the WeightHParams of the model's variables, nothing computed."""
  declared = task.model.abstract_init_with_metadata(input_spec)
  # What wrapped flax modules keep beside parameters has no flags of its own.
  return {
    name: tree
    if name == base_layer.PARAMS
    else jax.tree.map(_not_trainable, tree)
    for name, tree in declared.items()
  }


def _not_trainable(
  hparams: base_layer.WeightHParams,
) -> base_layer.WeightHParams:
  flag = base_layer.WeightHParamsCollection.NON_TRAINABLE
  flags = tuple(sorted({*hparams.collections, flag}))
  return dataclasses.replace(hparams, collections=flags)
