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
from pax.partitioning import (
  initialize,
  memory,
  offload,
  specs,
)
from pax.partitioning.batches import BatchPlacer
from pax.partitioning.partitioned_step import PartitionedStep
from pax.partitioning.placement import (
  Placement,
  replica_placement,
  spmd_placement,
)
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
    placement = replica_placement(task, devices)
  else:
    placement = spmd_placement(task, devices)
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
    self._steps: dict[Any, PartitionedStep] = {}
    # Shapes, dtypes and shardings of a global training batch.
    self.input_spec = self._batches.global_spec(input_spec)
    # The declaration of each variable.
    self.var_weight_hparams = _declarations(task, self.input_spec)
    self._state_specs = placement.state_specs(self.var_weight_hparams)
    # Shapes, dtypes and shardings of the train state.
    self.state_metadata = self._make_state_metadata()

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

  def fresh_opt_states(self, mdl_vars: Nested[jax.Array]) -> list[Any]:
    """Returns the optimizer states to begin with from these variables."""
    shardings = jax.tree.map(lambda x: x.sharding, self.state_metadata)
    create = jax.jit(
      lambda mdl_vars: self.task.create_opt_states(
        mdl_vars, self.var_weight_hparams
      ),
      out_shardings=shardings.opt_states,
    )
    with jax.set_mesh(self.mesh):
      return create(mdl_vars)

  @property
  def eval_state_metadata(self) -> TrainState:
    """`state_metadata` without what only training needs."""
    return self.state_metadata.to_eval_state()

  def train_step(self) -> PartitionedStep:
    """Returns `(state, batch, key) -> (state, StepOutput)`; donates state."""
    return self._once('train', self.input_spec, self._make_train_step)

  def eval_step(self, input_spec: NestedMap | None = None) -> PartitionedStep:
    """Returns `(eval state, batch, key) -> StepOutput`.

    `input_spec` tells the shapes of a host's batch, if not those of training.
    """
    if input_spec is None:
      return self.eval_step_for(self.input_spec)
    return self.eval_step_for(self._batches.global_spec(input_spec))

  def eval_step_for(self, batch: NestedMap) -> PartitionedStep:
    """Returns `eval_step` for batches as this one, which `put_batch` gave."""
    return self._for_eval(steps.eval_step, batch, _output)

  def decode_step_for(self, batch: NestedMap) -> PartitionedStep:
    """Returns `(eval state, batch, key) -> StepOutput` of `model.decode`."""
    return self._for_eval(steps.decode_step, batch, _output)

  def infer_step_for(self, batch: NestedMap) -> PartitionedStep:
    """Returns `(eval state, batch, key) -> rows` of the inference runner."""
    return self._for_eval(steps.infer_step, batch, lambda scalars, rows: rows)

  def put_batch(self, host_batch: NestedMap) -> NestedMap:
    """Returns a host's numpy batch on the mesh; any thread may call it."""
    return self._batches.put(host_batch)

  def run_on_mesh(self, fn: Callable[..., Any], *args: Any) -> Any:
    """Returns `fn(*args)`, with the mesh in scope for what it jits."""
    with jax.set_mesh(self.mesh):
      return fn(*args)

  def _make_state_metadata(self) -> TrainState:
    metadata = specs.state_shardings(
      self._state_specs,
      self.task.create_train_state_unpadded_shapes(self.var_weight_hparams),
      self.mesh,
    )
    train, opt_states = self.task.train, metadata.opt_states
    if train.opt_states_mesh_axes:
      _check_has_mesh(self.is_spmd, train.opt_states_mesh_axes)
      axes = tuple(train.opt_states_mesh_axes)
      opt_states = specs.split_metadata(opt_states, axes, self.mesh)
    if train.offload_opt_states:
      opt_states = offload.on_host(opt_states, self.mesh)
    return metadata.replace(opt_states=opt_states)

  def _make_train_step(self, batch: NestedMap) -> PartitionedStep:
    return self._partition(
      steps.train_step,
      lambda state, scalars, rows: (state, _output(scalars, rows)),
      self.state_metadata,
      batch,
    )

  def _for_eval(
    self,
    step: Callable[..., Any],
    batch: NestedMap,
    outputs: Callable[[Any, Any], Any],
  ) -> PartitionedStep:
    """Returns a step that leaves the state as it is, once for each shape."""

    def make(batch: NestedMap) -> PartitionedStep:
      return self._partition(
        step,
        lambda state, scalars, rows: outputs(scalars, rows),
        self.eval_state_metadata,
        batch,
      )

    return self._once(step.__name__, batch, make)

  def _once(
    self,
    name: str,
    batch: NestedMap,
    make: Callable[[NestedMap], PartitionedStep],
  ) -> PartitionedStep:
    """Returns the step of that name for batches of those shapes."""
    leaves, structure = jax.tree.flatten(batch)
    shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
    key = (name, structure, shapes)
    if key not in self._steps:
      self._steps[key] = make(jax.tree.map(_shape_of, batch))
    return self._steps[key]

  def _partition(
    self,
    step: Callable[..., Any],
    outputs: Callable[[Any, Any, Any], Any],
    state: TrainState,
    batch: NestedMap,
  ) -> PartitionedStep:
    """Returns `step` over the whole batch, compiled for the mesh.

    `outputs` arranges what is said of the state, of scalars and of rows as the
    step returns them. The state is donated where it comes back.
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

    everywhere = PartitionSpec()
    rows = placement.batch_spec(1)
    shardings = jax.tree.map(lambda x: x.sharding, state)
    replicated = NamedSharding(self.mesh, everywhere)
    changes_state = step is steps.train_step
    run = placement.parallelize(bound, outputs(everywhere, everywhere, rows))
    run = self._as_is_said(run, batch, changes_state=changes_state)
    run = offload.around(run, state, gives_back=changes_state)
    run.__name__ = step.__name__
    return PartitionedStep(
      run,
      mesh=self.mesh,
      state=state,
      batch=batch,
      # Rows of examples are left where the compiler puts them.
      out_shardings=outputs(shardings, replicated, None),
      donate_state=changes_state,
    )

  def _as_is_said(
    self, step: Callable[..., Any], lies: NestedMap, *, changes_state: bool
  ) -> Callable[..., Any]:
    """Returns the step, with all split as is said, be that uneven.

    A batch that `lies` split by host is split by devices.
    """
    state_specs = self._state_specs
    if not changes_state:
      state_specs = state_specs.to_eval_state()

    def place(x: jax.Array, told: Any) -> jax.Array:
      spec = self._placement.batch_spec(x.ndim)
      is_even = specs.is_even(spec, x.shape, self.mesh)
      if is_even and told.sharding.mesh == self.mesh:
        return x
      wanted = NamedSharding(self.mesh, spec)
      return jax.lax.with_sharding_constraint(x, wanted)

    def run(state: TrainState, batch: NestedMap, key: jax.Array) -> Any:
      state = specs.constrain(state, state_specs, self.mesh)
      return step(state, jax.tree.map(place, batch, lies), key)

    return run


def _check_has_mesh(is_spmd: bool, axes: Sequence[str]) -> None:
  if not is_spmd:
    raise ValueError(
      f'opt_states_mesh_axes needs a mesh, got {list(axes)} and replicas of the'
      ' whole model; set ICI_MESH_SHAPE, or opt_states_mesh_axes=()'
    )


def _shape_of(x: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


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
