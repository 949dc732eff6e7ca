# SPDX-License-Identifier: Apache-2.0
"""Makes steps for the mesh of a partitioner from step functions."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pax import steps, tasks_lib, train_states
from pax.partitioning import compiler_options, offload, specs
from pax.partitioning.partitioned_function import PartitionedFunction
from pax.partitioning.partitioned_step import JitOptions, PartitionedStep
from pax.partitioning.step_protocols import BoundStep, StepFn
from pax.train_states import Variables
from praxis import base_layer, py_utils, pytypes

NestedMap = pytypes.NestedMap
Batch = steps.Batch
TrainState = train_states.TrainState

_REPLICATED = PartitionSpec()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepFactory:
  """Binds step functions to a task and its shardings."""

  task: tasks_lib.SingleTask
  mesh: Mesh
  # Mesh axis of the replicas; None for SPMD.
  axis_name: str | None
  # WeightHParams of each variable.
  var_weight_hparams: Variables[base_layer.WeightHParams]
  # Specs of the state within steps.
  state_specs: TrainState[PartitionSpec]
  # Shapes and shardings of the state between steps.
  state_metadata: TrainState[jax.ShapeDtypeStruct]
  # Rank of an input -> its PartitionSpec.
  batch_spec: Callable[[int], PartitionSpec]
  # (step on the rows of one replica, specs of its outputs) -> step on the
  # global batch.
  parallelize: Callable[[BoundStep, Any], BoundStep]
  # Host batch -> global batch.
  put_batch: Callable[[Batch], Batch]

  def partition(self, step_fn: StepFn, *, is_eval: bool) -> PartitionedFunction:
    """Returns a user's step function on global batches.

    Args:
      step_fn: The step function.
      is_eval: Whether it takes no optimizer states and returns no state.
    """
    task, metadata = self.task, self.state_metadata
    if is_eval:
      metadata = metadata.to_eval_state()
    fprop_dtype = task.model.fprop_dtype

    def run(
      state: TrainState,
      prng_key: jax.Array,
      inputs: Batch,
      static_args: steps.BaseStepFnStaticArgs | None,
    ) -> tuple[TrainState | None, steps.StepFnOutput]:
      def bound(state: TrainState, batch: Batch, key: jax.Array) -> Any:
        outputs = step_fn(
          task,
          state,
          self._replica_key(key),
          batch,
          fprop_dtype,
          self.var_weight_hparams,
          static_args,
        )
        _check_outputs(step_fn, outputs)
        return outputs

      if static_args is not None and self.axis_name is None:
        num_rows = static_args.unpadded_global_batch_size
        inputs = _remove_padding(inputs, num_rows)
      call = self.parallelize(bound, (_REPLICATED, _REPLICATED))
      call = self._constrain_shardings(call, None)
      if task.train.offload_opt_states:
        call = offload.with_offloaded_state(
          call, metadata, returns_state=not is_eval
        )
      return call(state, inputs, prng_key)

    run.__name__ = getattr(step_fn, '__name__', 'step')
    replicated = NamedSharding(self.mesh, _REPLICATED)
    shardings = jax.tree.map(lambda x: x.sharding, metadata)
    shardings = shardings.replace(extra_state=replicated)
    return PartitionedFunction(
      run,
      mesh=self.mesh,
      put_batch=self.put_batch,
      out_shardings=(replicated if is_eval else shardings, replicated),
      donate_state=not is_eval,
      options=self._compiler_options(),
    )

  def train_step(self, batch: Batch) -> PartitionedStep:
    """Returns `(state, batch, key) -> (state, StepOutput)`; donates state.

    Args:
      batch: Shapes and shardings of the global batch.
    """
    return self._partition(
      _packed_train_step,
      lambda state, scalars, rows: (state, _output(scalars, rows)),
      self.state_metadata,
      batch,
      updates_state=True,
    )

  def eval_step(
    self, step: Callable[..., steps.StepFnOutput], batch: Batch
  ) -> PartitionedStep:
    """Returns `(eval state, batch, key) -> StepOutput`.

    Args:
      step: A step that leaves the state unchanged.
      batch: Shapes and shardings of the global batch.
    """
    return self._partition(
      _packed(step),
      lambda state, scalars, rows: _output(scalars, rows),
      self.state_metadata.to_eval_state(),
      batch,
      updates_state=False,
    )

  def infer_step(self, batch: Batch) -> PartitionedStep:
    """Returns `(eval state, batch, key) -> rows` of the inference runner.

    Args:
      batch: Shapes and shardings of the global batch.
    """
    return self._partition(
      steps.infer_step,
      lambda state, scalars, rows: rows,
      self.state_metadata.to_eval_state(),
      batch,
      updates_state=False,
    )

  def _partition(
    self,
    step: Callable[..., Any],
    arrange: Callable[[Any, Any, Any], Any],
    state: TrainState[jax.ShapeDtypeStruct],
    batch: Batch,
    *,
    updates_state: bool,
  ) -> PartitionedStep:
    """Returns `step` on global batches, for the mesh.

    Args:
      step: The step function.
      arrange: (value for the state, for scalars, for rows of examples) -> the
        output structure of the step with these values as leaves.
      state: Shapes and shardings of the state.
      batch: Shapes and shardings of the global batch.
      updates_state: Whether the step donates its state and returns a new one.
    """

    train = self.task.train
    # Both single and averaged steps reach summaries.
    norm_interval = math.gcd(
      train.summary_interval_steps,
      train.summary_accumulate_interval_steps or 0,
    )

    def bound(state: TrainState, batch: Batch, key: jax.Array) -> Any:
      settings = steps.StepSettings(
        task=self.task,
        var_weight_hparams=self.var_weight_hparams,
        axis_name=self.axis_name,
        variable_norm_interval=norm_interval,
      )
      return step(settings, state, batch, key)

    rows_spec = self.batch_spec(1)
    shardings = jax.tree.map(lambda x: x.sharding, state)
    replicated = NamedSharding(self.mesh, _REPLICATED)
    run = self.parallelize(bound, arrange(_REPLICATED, _REPLICATED, rows_spec))
    run = self._constrain_shardings(run, batch)
    run = offload.with_offloaded_state(run, state, returns_state=updates_state)
    run.__name__ = step.__name__
    return PartitionedStep(
      run,
      mesh=self.mesh,
      state=state,
      batch=batch,
      jit_options=JitOptions(
        # XLA chooses the sharding of per-example rows.
        out_shardings=arrange(shardings, replicated, None),
        donate_state=updates_state,
        compiler_options=self._compiler_options(),
      ),
    )

  def _compiler_options(self) -> dict[str, compiler_options.Option]:
    return compiler_options.step_options(
      self.mesh.devices.flat[0], self.task.train.compiler_options
    )

  def _constrain_shardings(
    self, step: BoundStep, batch_spec: Batch | None
  ) -> BoundStep:
    """Applies the declared shardings, including uneven ones, within the step.

    A batch that is sharded by host is resharded over devices, and axes are in
    the order in which XLA multiplies matrices correctly.

    Args:
      step: The step.
      batch_spec: Shapes and shardings of the batch; None if they are unknown.
    """

    matrix_axes = specs.matrix_axes(self.state_specs.mdl_vars, self.mesh)

    def constrain_input(
      x: jax.Array, leaf_spec: jax.ShapeDtypeStruct | None = None
    ) -> jax.Array:
      axes = map(py_utils.mesh_axes, self.batch_spec(x.ndim))
      spec = (base_layer.axes_of_dimension(a) or None for a in axes)
      sharding = NamedSharding(self.mesh, PartitionSpec(*spec))
      if leaf_spec and leaf_spec.sharding.is_equivalent_to(sharding, x.ndim):
        return x
      return jax.lax.with_sharding_constraint(x, sharding)

    def run(state: TrainState, batch: Batch, key: jax.Array) -> Any:
      state_specs = _specs_of(state, self.state_specs)
      state = specs.constrain_uneven(state, state_specs, self.mesh)
      with base_layer.matrices_sharded_over(matrix_axes):
        if batch_spec is None:
          batch = jax.tree.map(constrain_input, batch)
        else:
          batch = jax.tree.map(constrain_input, batch, batch_spec)
        return step(state, batch, key)

    return run

  def _replica_key(self, key: jax.Array) -> jax.Array:
    """Returns the key of the traced replica."""
    if self.axis_name is None:
      return key
    return jax.random.fold_in(key, jax.lax.axis_index(self.axis_name))


def _packed(step: Callable[..., steps.StepFnOutput]) -> Callable[..., Any]:
  """Returns the step with packed output."""

  @functools.wraps(step)
  def packed(*args: Any) -> steps.StepOutput:
    return steps.pack_output(step(*args))

  return packed


@functools.wraps(steps.train_step)
def _packed_train_step(
  settings: steps.StepSettings, *args: Any
) -> tuple[TrainState, steps.StepOutput]:
  state, output = steps.train_step(settings, *args)
  if not settings.task.train.log_train_output_interval_steps:
    output = dataclasses.replace(output, per_example_out=NestedMap())
  return state, steps.pack_output(output)


def _specs_of(
  state: TrainState, state_specs: TrainState[PartitionSpec]
) -> TrainState[PartitionSpec]:
  """Returns the specs of a state, which may lack optimizer states, variables.

  The extra state of a user is replicated.
  """
  return state_specs.replace(
    mdl_vars=specs.filter_nestedmap(state_specs.mdl_vars, state.mdl_vars),
    opt_states=state_specs.opt_states if state.opt_states else [],
    extra_state=jax.tree.map(lambda _: _REPLICATED, state.extra_state),
  )


def _check_outputs(step_fn: StepFn, outputs: Any) -> None:
  if not isinstance(outputs, tuple) or len(outputs) != 2:
    raise ValueError(
      f'{getattr(step_fn, "__name__", step_fn)} must return (state or None,'
      f' StepFnOutput), got {type(outputs).__name__}; return both'
    )


def _remove_padding(batch: Batch, num_rows: int | None) -> Batch:
  """Returns the first rows of each host, `num_rows` in all."""
  hosts = jax.process_count()

  def remove(x: jax.Array) -> jax.Array:
    if num_rows is None or not x.ndim or x.shape[0] <= num_rows:
      return x
    by_host = x.reshape(hosts, x.shape[0] // hosts, *x.shape[1:])
    return by_host[:, : num_rows // hosts].reshape(num_rows, *x.shape[1:])

  return jax.tree.map(remove, batch)


def _output(scalars: Any, examples: Any) -> steps.StepOutput:
  """Returns a StepOutput with one value for scalars and one for examples."""
  return steps.StepOutput(
    loss=scalars,
    scalars=scalars,
    weighted_arrays=scalars,
    tensors=scalars,
    per_example_out=examples,
  )
