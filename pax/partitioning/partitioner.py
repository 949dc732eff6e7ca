# SPDX-License-Identifier: Apache-2.0
"""Partitioner: the state, batches and compiled steps of a task on a mesh."""

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
  StepFn,
  replica_placement,
  spmd_placement,
)
from praxis import base_layer, pax_fiddle, pytypes

Nested = pytypes.Nested
Batch = steps.Batch
TrainState = train_states.TrainState


def create_partitioner(
  task: pax_fiddle.Config | tasks_lib.SingleTask,
  input_spec: Batch,
  *,
  devices: Sequence[jax.Device] | None = None,
) -> Partitioner:
  """Returns the partitioner of a task.

  A model with `ici_mesh_shape` runs SPMD, otherwise in data-parallel replicas.

  Args:
    task: The task or its Config.
    input_spec: Shapes and dtypes of the training batch of one host.
    devices: The devices; None is all.

  Raises:
    ValueError: The mesh does not fit the devices, or the batch the mesh.
  """
  if isinstance(task, pax_fiddle.Config):
    task = task.Instantiate()
  if task.model.ici_mesh_shape is None:
    placement = replica_placement(task, devices)
  else:
    placement = spmd_placement(task, devices)
  return Partitioner(task, placement, input_spec)


class Partitioner:
  """A task with the shardings of its arrays and its compiled steps."""

  def __init__(
    self,
    task: tasks_lib.SingleTask,
    placement: Placement,
    input_spec: Batch,
  ):
    self.task = task
    self.mesh = placement.mesh
    self.is_spmd = placement.axis_name is None
    self._placement = placement
    self._batches = BatchPlacer(placement)
    self._steps: dict[Any, PartitionedStep] = {}
    # Shapes, dtypes and shardings of a global training batch.
    self.input_spec = self._batches.global_spec(input_spec)
    # WeightHParams of each variable.
    self.var_weight_hparams = _weight_hparams(task, self.input_spec)
    self._state_specs = placement.state_specs(self.var_weight_hparams)
    # Shapes, dtypes and shardings of the train state between steps.
    self.state_metadata = self._make_state_metadata()

  @property
  def devices(self) -> list[jax.Device]:
    """The devices of the mesh."""
    return list(self.mesh.devices.flat)

  @property
  def num_params(self) -> int:
    """The number of parameters."""
    params = self.var_weight_hparams[base_layer.PARAMS]
    return sum(math.prod(leaf.full_shape) for leaf in jax.tree.leaves(params))

  def preflight(self) -> memory.MemoryReport:
    """Returns the memory that the state needs and the free memory.

    Raises:
      ValueError: The state does not fit.
    """
    return memory.check(self.state_metadata, self.devices)

  def initialize(self, key: jax.Array) -> TrainState:
    """Returns the state at step 0, sampled with `key`, on the devices."""
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

  def fresh_opt_states(
    self, mdl_vars: Nested[jax.Array]
  ) -> list[Nested[jax.Array]]:
    """Returns the initial optimizer states of these variables."""
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
  def eval_state_metadata(self) -> TrainState[jax.ShapeDtypeStruct]:
    """`state_metadata` without optimizer states."""
    return self.state_metadata.to_eval_state()

  def train_step(self) -> PartitionedStep:
    """Returns `(state, batch, key) -> (state, StepOutput)`; donates state."""
    return self._cached_step('train', self.input_spec, self._make_train_step)

  def eval_step(self, input_spec: Batch | None = None) -> PartitionedStep:
    """Returns `(eval state, batch, key) -> StepOutput`.

    Args:
      input_spec: Shapes and dtypes of the batch of one host; None is the
        training batch.
    """
    if input_spec is None:
      return self.eval_step_for(self.input_spec)
    return self.eval_step_for(self._batches.global_spec(input_spec))

  def eval_step_for(self, batch: Batch) -> PartitionedStep:
    """Returns `eval_step` for batches of the shapes of this global batch."""
    return self._eval_step(steps.eval_step, batch, _output)

  def decode_step_for(self, batch: Batch) -> PartitionedStep:
    """Returns `(eval state, batch, key) -> StepOutput` of `model.decode`."""
    return self._eval_step(steps.decode_step, batch, _output)

  def infer_step_for(self, batch: Batch) -> PartitionedStep:
    """Returns `(eval state, batch, key) -> rows` of the inference runner."""
    return self._eval_step(steps.infer_step, batch, lambda scalars, rows: rows)

  def put_batch(self, host_batch: Batch) -> Batch:
    """Returns the global batch of a host batch; thread-safe."""
    return self._batches.put(host_batch)

  def run_on_mesh(self, fn: Callable[..., Any], *args: Any) -> Any:
    """Returns `fn(*args)` with the mesh as context of jitted functions."""
    with jax.set_mesh(self.mesh):
      return fn(*args)

  def _make_state_metadata(self) -> TrainState[jax.ShapeDtypeStruct]:
    metadata = specs.state_shardings(
      self._state_specs,
      self.task.create_train_state_unpadded_shapes(self.var_weight_hparams),
      self.mesh,
    )
    train, opt_states = self.task.train, metadata.opt_states
    if train.opt_states_mesh_axes:
      _check_has_mesh(self.is_spmd, train.opt_states_mesh_axes)
      axes = tuple(train.opt_states_mesh_axes)
      opt_states = specs.shard_over_axes(opt_states, axes, self.mesh)
    if train.offload_opt_states:
      opt_states = offload.offload_metadata(opt_states, self.mesh)
    return metadata.replace(opt_states=opt_states)

  def _make_train_step(self, batch: Batch) -> PartitionedStep:
    return self._partition(
      steps.train_step,
      lambda state, scalars, rows: (state, _output(scalars, rows)),
      self.state_metadata,
      batch,
    )

  def _eval_step(
    self,
    step: Callable[..., Any],
    batch: Batch,
    arrange: Callable[[Any, Any], Any],
  ) -> PartitionedStep:
    """Returns a step that leaves the state unchanged, one per batch shape."""

    def make(batch: Batch) -> PartitionedStep:
      return self._partition(
        step,
        lambda state, scalars, rows: arrange(scalars, rows),
        self.eval_state_metadata,
        batch,
      )

    return self._cached_step(step.__name__, batch, make)

  def _cached_step(
    self,
    name: str,
    batch: Batch,
    make: Callable[[Batch], PartitionedStep],
  ) -> PartitionedStep:
    """Returns the step of this name for batches of these shapes."""
    leaves, structure = jax.tree.flatten(batch)
    shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
    key = (name, structure, shapes)
    if key not in self._steps:
      self._steps[key] = make(jax.tree.map(_shape_of, batch))
    return self._steps[key]

  def _partition(
    self,
    step: Callable[..., Any],
    arrange: Callable[[Any, Any, Any], Any],
    state: TrainState[jax.ShapeDtypeStruct],
    batch: Batch,
  ) -> PartitionedStep:
    """Returns `step` on global batches, for the mesh.

    Args:
      step: The step function; the train step donates its state.
      arrange: (value for the state, for scalars, for rows of examples) -> the
        output structure of the step with these values as leaves.
      state: Shapes and shardings of the state.
      batch: Shapes and shardings of the global batch.
    """
    placement = self._placement

    def bound(state: TrainState, batch: Batch, key: jax.Array) -> Any:
      return step(
        self.task,
        state,
        batch,
        key,
        var_weight_hparams=self.var_weight_hparams,
        axis_name=placement.axis_name,
      )

    replicated_spec = PartitionSpec()
    rows_spec = placement.batch_spec(1)
    shardings = jax.tree.map(lambda x: x.sharding, state)
    replicated = NamedSharding(self.mesh, replicated_spec)
    is_train = step is steps.train_step
    run = placement.parallelize(
      bound, arrange(replicated_spec, replicated_spec, rows_spec)
    )
    run = self._constrain_shardings(run, batch, is_train=is_train)
    run = offload.with_offloaded_state(run, state, returns_state=is_train)
    run.__name__ = step.__name__
    return PartitionedStep(
      run,
      mesh=self.mesh,
      state=state,
      batch=batch,
      # XLA chooses the sharding of per-example rows.
      out_shardings=arrange(shardings, replicated, None),
      donate_state=is_train,
    )

  def _constrain_shardings(
    self, step: StepFn, batch_spec: Batch, *, is_train: bool
  ) -> StepFn:
    """Applies the declared shardings, including uneven ones, within the step.

    A batch that is sharded by host is resharded over devices.
    """
    state_specs = self._state_specs
    if not is_train:
      state_specs = state_specs.to_eval_state()

    def constrain_input(
      x: jax.Array, leaf_spec: jax.ShapeDtypeStruct
    ) -> jax.Array:
      spec = self._placement.batch_spec(x.ndim)
      is_even = specs.is_even(spec, x.shape, self.mesh)
      if is_even and leaf_spec.sharding.mesh == self.mesh:
        return x
      sharding = NamedSharding(self.mesh, spec)
      return jax.lax.with_sharding_constraint(x, sharding)

    def run(state: TrainState, batch: Batch, key: jax.Array) -> Any:
      state = specs.constrain_uneven(state, state_specs, self.mesh)
      batch = jax.tree.map(constrain_input, batch, batch_spec)
      return step(state, batch, key)

    return run


def _check_has_mesh(is_spmd: bool, axes: Sequence[str]) -> None:
  if not is_spmd:
    raise ValueError(
      f'opt_states_mesh_axes needs a mesh, got {list(axes)} and data-parallel'
      ' replicas; set ICI_MESH_SHAPE, or opt_states_mesh_axes=()'
    )


def _shape_of(x: jax.Array | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


def _output(scalars: Any, examples: Any) -> steps.StepOutput:
  """Returns a StepOutput with one value for scalars and one for examples."""
  return steps.StepOutput(
    loss=scalars,
    scalars=scalars,
    tensors=scalars,
    per_example_out=examples,
  )


def _weight_hparams(
  task: tasks_lib.SingleTask, input_spec: Batch
) -> Nested[base_layer.WeightHParams]:
  """Returns the WeightHParams of the variables, by abstract evaluation."""
  collections = task.model.abstract_init_with_metadata(input_spec)
  # Variables of wrapped Flax modules have no flags: outside of `params` they
  # are not trainable.
  return {
    name: tree
    if name == base_layer.PARAMS
    else jax.tree.map(_as_non_trainable, tree)
    for name, tree in collections.items()
  }


def _as_non_trainable(
  hparams: base_layer.WeightHParams,
) -> base_layer.WeightHParams:
  flag = base_layer.WeightHParamsCollection.NON_TRAINABLE
  flags = tuple(sorted({*hparams.collections, flag}))
  return dataclasses.replace(hparams, collections=flags)
