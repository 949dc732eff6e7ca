# SPDX-License-Identifier: Apache-2.0
"""Partitioner: the state, batches and compiled steps of a task on a mesh."""

from __future__ import annotations

import abc
import functools
import math
import os
import pprint
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
from absl import logging
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pax import steps, tasks_lib, train_states
from pax.checkpoints import init_from, paths
from pax.partitioning import (
  initialize,
  input_specs_file,
  memory,
  offload,
  specs,
)
from pax.partitioning.batches import BatchPlacer
from pax.partitioning.initialize import StateInitializer
from pax.partitioning.partitioned_step import PartitionedStep
from pax.partitioning.step_factory import StepFactory
from pax.partitioning.step_protocols import (
  BoundStep,
  PartitionedStepFn,
  StepFn,
)
from pax.partitioning.train_state_metadata import TrainStateMetadata
from pax.steps.declared_variables import declare_variables
from pax.train_states import Variables
from praxis import base_input, base_layer, pax_fiddle, pytypes, trees
from praxis.pytypes import Nested

Batch = steps.Batch
NestedMap = pytypes.NestedMap
TrainState = train_states.TrainState
InputConfig = pax_fiddle.Config[base_input.BaseInput]

_REPLICATED = PartitionSpec()


class Partitioner(metaclass=abc.ABCMeta):
  """A task with the shardings of its arrays and its compiled steps.

      partitioner = create_partitioner(task)
      partitioner.setup(task, init_key, input_shapes)
      key, state, _ = partitioner.initialize_prng_key_and_train_state(
        key, None, None
      )
      step, input_specs = partitioner.partition(step_fn, input_shapes, False)
      batch = partitioner.preprocess_inputs(inp, inp.get_next(), input_specs)
      state, output = step(state, partitioner.preprocess_prng_key(key), batch)

  Steps of `partition` take and return (state, key, batch, static args); the
  steps of `train_step` and its likes have outputs that are fast to fetch.
  """

  # Mesh axis of the replicas, each running the step on its own rows of the
  # batch; None for SPMD.
  _axis_name: str | None = None
  # Whether a batch that the mesh does not divide evenly is an error; otherwise
  # steps shard it unevenly.
  _requires_even_batches = False

  def __init__(self, init_is_eval: bool):
    """Partitions nothing yet; `setup` takes the task.

    Args:
      init_is_eval: Whether variables are declared in evaluation mode, unless
        `task.train.always_use_train_for_model_init` is set.
    """
    self._init_is_eval = init_is_eval
    self._jax_task: tasks_lib.SingleTask | None = None
    self._init_key: jax.Array | None = None
    self._job_log_dir: str | os.PathLike[str] | None = None
    self._train_inputs_shape_dtype: Batch | None = None
    self._steps: dict[Any, PartitionedStep] = {}

  def setup(
    self,
    jax_task: tasks_lib.SingleTask,
    init_key: jax.Array | None,
    train_inputs_shape_dtype: Batch | None,
    train_input_pipeline: base_input.BaseInput | None = None,
    job_log_dir: str | os.PathLike[str] | None = None,
  ) -> None:
    """Derives variables, shapes and shardings from the shapes of a batch.

    Args:
      jax_task: The task.
      init_key: PRNG key; only its presence is part of the contract.
      train_inputs_shape_dtype: Shapes and dtypes of the global training batch;
        of a model without mesh those of the batch of one device. See
        `init_spec`.
      train_input_pipeline: An input whose next batch has these shapes, in place
        of `train_inputs_shape_dtype`.
      job_log_dir: Directory of the job; the shapes of a batch of the input are
        written to input_specs.json in it.

    Raises:
      ValueError: Not exactly one of shapes and input is set, the input is
        empty, or the shapes do not fit the mesh.
    """
    if bool(train_inputs_shape_dtype) == bool(train_input_pipeline):
      raise ValueError(
        'setup needs exactly one of train_inputs_shape_dtype and'
        ' train_input_pipeline; pass the shapes of a training batch, or the'
        ' input to read one from'
      )
    self._jax_task = jax_task
    self._init_key = init_key
    self._job_log_dir = job_log_dir
    self._steps = {}
    self._batches = BatchPlacer(
      self.mesh,
      self._batch_spec,
      requires_even_batches=self._requires_even_batches,
    )
    if train_input_pipeline is not None:
      train_inputs_shape_dtype = self._get_train_inputs_shape_dtype(
        train_input_pipeline
      )
    self._train_inputs_shape_dtype = train_inputs_shape_dtype
    # Shapes, dtypes and shardings of a global training batch.
    self.input_spec = self._batches.shard_global_spec(
      self._global_shapes(self.train_inputs_shape_dtype)
    )
    # WeightHParams of each variable.
    self.var_weight_hparams = declare_variables(
      jax_task.model, self.input_spec, do_eval=self._init_do_eval
    )
    self._state_specs = self._make_state_specs(self.var_weight_hparams)
    # Shapes, dtypes and shardings of the train state between steps.
    self.state_metadata = self._make_state_metadata()

  @property
  @abc.abstractmethod
  def mesh(self) -> Mesh:
    """The mesh of the devices; over replicas it has one axis."""

  @property
  def global_mesh(self) -> Mesh | None:
    """The mesh of the model; None without one."""
    return None

  @property
  def is_spmd(self) -> bool:
    """Whether the model has a mesh; otherwise it runs in replicas."""
    return self._axis_name is None

  @property
  def task(self) -> tasks_lib.SingleTask:
    """The task.

    Raises:
      ValueError: Called before `setup`.
    """
    if self._jax_task is None:
      raise ValueError(
        f'{type(self).__name__} has no task before setup; call'
        ' setup(jax_task, init_key, train_inputs_shape_dtype) first'
      )
    return self._jax_task

  @property
  def train_inputs_shape_dtype(self) -> Batch:
    """Shapes and dtypes of the batch that `setup` declared variables for.

    Raises:
      ValueError: Called before `setup`.
    """
    if self._train_inputs_shape_dtype is None:
      raise ValueError(
        f'{type(self).__name__} has no input shapes before setup; call'
        ' setup(jax_task, init_key, train_inputs_shape_dtype) first'
      )
    return self._train_inputs_shape_dtype

  @abc.abstractmethod
  def init_spec(self, host_spec: Batch) -> Batch:
    """Returns the shapes that `setup` takes.

    Args:
      host_spec: Shapes and dtypes of the batch of one host.
    """

  @abc.abstractmethod
  def preprocess_inputs(
    self,
    input_pipeline: base_input.BaseInput,
    padded_inputs: Batch,
    partition_specs: Nested[PartitionSpec] | None,
  ) -> Batch:
    """Returns the batch of a host as a step of `partition` takes it.

    Args:
      input_pipeline: The input.
      padded_inputs: Its batch.
      partition_specs: Specs of the batch, of `partition`.
    """

  @abc.abstractmethod
  def _global_shapes(self, init_spec: Batch) -> Batch:
    """Returns the shapes of the global batch from those that `setup` takes."""

  @abc.abstractmethod
  def _make_state_specs(
    self, var_weight_hparams: Variables[base_layer.WeightHParams]
  ) -> TrainState[PartitionSpec]:
    """Returns the spec of each array of the train state."""

  @abc.abstractmethod
  def _batch_spec(self, rank: int) -> PartitionSpec:
    """Returns the spec of an input of this rank."""

  @abc.abstractmethod
  def _parallelize(self, step: BoundStep, output_specs: Any) -> BoundStep:
    """Returns a step on global batches.

    Args:
      step: The step on the rows of one replica, or under SPMD on all rows.
      output_specs: Specs of its outputs.
    """

  def preprocess_input_config(self, input_p: InputConfig) -> InputConfig:
    """Sets the part of the data that this process reads, in place.

    Batches need no padding: steps shard uneven batches unevenly.
    """
    if not input_p.num_infeed_hosts:
      input_p.num_infeed_hosts = jax.process_count()
    input_p.infeed_host_index = jax.process_index()
    return input_p

  def check_input_spec(self, batch: Batch) -> None:
    """Compares a batch with the shapes of `setup`, except for its rows.

    The batch may have further entries.

    Raises:
      ValueError: Entries are missing, or their shapes or dtypes differ.
    """

    def row_spec(x: Any) -> jax.ShapeDtypeStruct:
      dtype = jax.dtypes.canonicalize_dtype(x.dtype)
      return jax.ShapeDtypeStruct(x.shape[1:], dtype)

    expected = jax.tree.map(row_spec, self.train_inputs_shape_dtype)
    actual = jax.tree.map(row_spec, batch)
    if not trees.is_subset(expected, actual):
      raise ValueError(
        'Spec of actual training input does not match train input specs.'
        f' Observed spec of a row:\n{pprint.pformat(actual)},\nExpected spec:\n'
        f'{pprint.pformat(expected)}; correct get_input_specs_provider_params'
      )

  def initialize_prng_key_and_train_state(
    self,
    root_prng_key: jax.Array,
    train_state: TrainState | None,
    checkpoint_type: Any | None,
    discard_opt_states: bool | None = False,
  ) -> tuple[jax.Array, TrainState, TrainState | None]:
    """Returns the key of the steps, the state, and its provenance.

    A new state has the variables that the task's `init_from_checkpoint_rules`
    load.

    Args:
      root_prng_key: PRNG key of the job.
      train_state: The restored state; None creates a new one.
      checkpoint_type: Unused: the files of a checkpoint have their format.
      discard_opt_states: Whether a new state has no optimizer states.

    Returns:
      The provenance is None for a restored state.
    """
    del checkpoint_type
    root_prng_key, init_key = jax.random.split(root_prng_key)
    if train_state is not None:
      return root_prng_key, self._put_state(train_state), None
    state, provenance = self._initialize_by_rules(
      init_key, discard_opt_states=bool(discard_opt_states)
    )
    return root_prng_key, state, provenance

  def preprocess_prng_key(self, prng_key: jax.Array) -> jax.Array:
    """Returns the key replicated over the mesh; replicas derive their own."""
    replicated = NamedSharding(self.mesh, _REPLICATED)
    return jax.jit(lambda key: key, out_shardings=replicated)(prng_key)

  def get_train_state_metadata(
    self,
    discard_opt_states: bool = False,
    unpadded_global_batch_size: int | None = None,
  ) -> TrainStateMetadata:
    """Returns the shapes, shardings and specs of the train state.

    Args:
      discard_opt_states: Whether to leave out the optimizer states.
      unpadded_global_batch_size: Unused.
    """
    del unpadded_global_batch_size
    metadata = TrainStateMetadata(
      input_shape_dtype=self.train_inputs_shape_dtype,
      var_weight_hparams=self.var_weight_hparams,
      padded_global_shapes=self.state_metadata,
      unpadded_global_shapes=self.state_metadata,
      partition_specs=self._state_specs if self.is_spmd else None,
    )
    return metadata.to_eval() if discard_opt_states else metadata

  def partition(
    self, step_fn: StepFn, inputs_shape_dtype: Batch, is_eval: bool
  ) -> tuple[PartitionedStepFn, Nested[PartitionSpec] | None]:
    """Returns a step function for the mesh, and the specs of its batch.

    Args:
      step_fn: The step function; under replicas its outputs must be equal on
        all of them.
      inputs_shape_dtype: Shapes and dtypes of the global batch.
      is_eval: Whether the step takes no optimizer states and returns None for
        the state.

    Returns:
      The step, and PartitionSpecs of a batch; None without a mesh.
    """
    function = self._factory().partition(step_fn, is_eval=is_eval)
    return function, self.input_partition_specs(inputs_shape_dtype)

  @property
  def devices(self) -> list[jax.Device]:
    """The devices of the mesh."""
    return list(self.mesh.devices.flat)

  @property
  def num_params(self) -> int:
    """The number of parameters."""
    params = self.var_weight_hparams[base_layer.PARAMS]
    return sum(math.prod(leaf.full_shape) for leaf in jax.tree.leaves(params))

  def preflight(
    self, *, discard_opt_states: bool = False
  ) -> memory.MemoryReport:
    """Returns the memory that the state needs and the free memory.

    Args:
      discard_opt_states: Whether the state has no optimizer states.

    Raises:
      ValueError: The state does not fit.
    """
    metadata = self._metadata(discard_opt_states=discard_opt_states)
    return memory.check(metadata, self.devices)

  def initialize(
    self,
    key: jax.Array,
    *,
    discard_opt_states: bool = False,
    loaded: Mapping[str, jax.Array] | None = None,
  ) -> TrainState:
    """Returns the state at step 0, sampled with `key`, on the devices.

    Args:
      key: PRNG key.
      discard_opt_states: Whether to leave out the optimizer states.
      loaded: Leaves by name, which are not sampled. Optimizer states are those
        of a job that begins with them.
    """
    metadata = self._metadata(discard_opt_states=discard_opt_states)
    loaded = loaded or {}
    # What is loaded is in memory already.
    leaves = paths.flatten(metadata)
    memory.check(
      {name: x for name, x in leaves.items() if name not in loaded},
      self.devices,
    )
    with jax.set_mesh(self.mesh):
      return self._initializer(metadata).state(key, loaded)

  def initialize_leaf(self, key: jax.Array, name: str) -> jax.Array:
    """Returns one leaf of `initialize`, by its name."""
    with jax.set_mesh(self.mesh):
      leaves = self._initializer(self.state_metadata).leaves(key, [name], {})
    return leaves[name]

  def _metadata(
    self, *, discard_opt_states: bool
  ) -> TrainState[jax.ShapeDtypeStruct]:
    return (
      self.eval_state_metadata if discard_opt_states else self.state_metadata
    )

  def _initializer(
    self, metadata: TrainState[jax.ShapeDtypeStruct]
  ) -> StateInitializer:
    return StateInitializer(
      task=self.task,
      var_weight_hparams=self.var_weight_hparams,
      metadata=metadata,
      batch=self.input_spec,
      do_eval=self._init_do_eval,
      compiler_options=initialize.compiler_options(
        self.devices, self.num_params
      ),
    )

  @property
  def eval_state_metadata(self) -> TrainState[jax.ShapeDtypeStruct]:
    """`state_metadata` without optimizer states."""
    return self.state_metadata.to_eval_state()

  def train_step(self) -> PartitionedStep:
    """Returns `(state, batch, key) -> (state, StepOutput)`; donates state."""
    return self.train_step_for(self.input_spec)

  def train_step_for(self, batch: Batch) -> PartitionedStep:
    """Returns `train_step` for batches of the shapes of this global batch."""
    return self._cached_step('train_step', batch, self._factory().train_step)

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
    return self.step_for(steps.eval_step, batch)

  def decode_step_for(self, batch: Batch) -> PartitionedStep:
    """Returns `(eval state, batch, key) -> StepOutput` of `model.decode`."""
    return self.step_for(steps.decode_step, batch)

  def infer_step_for(self, batch: Batch) -> PartitionedStep:
    """Returns `(eval state, batch, key) -> rows` of the inference runner."""
    return self._cached_step('infer_step', batch, self._factory().infer_step)

  def step_for(
    self, step: Callable[..., steps.StepFnOutput], batch: Batch
  ) -> PartitionedStep:
    """Returns `(eval state, batch, key) -> StepOutput` of a step.

    Args:
      step: (settings, state, batch, key) -> output, such as `steps.score_step`;
        it leaves the state unchanged.
      batch: The global batch, or its shapes and shardings.
    """
    make = functools.partial(self._factory().eval_step, step)
    return self._cached_step(step, batch, make)

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

  @property
  def _init_do_eval(self) -> bool:
    """Whether variables are declared in evaluation mode."""
    always_train = self.task.train.always_use_train_for_model_init
    return self._init_is_eval and not always_train

  def _get_train_inputs_shape_dtype(
    self, train_input_pipeline: base_input.BaseInput
  ) -> Batch:
    """Returns the shapes that `setup` takes, from the next batch of an input.

    Raises:
      ValueError: The input has no batch.
    """
    batch = train_input_pipeline.peek_padded()
    if batch is None:
      raise ValueError(
        f'the input {train_input_pipeline.name!r} has no batch; pass'
        ' train_inputs_shape_dtype instead'
      )
    host_spec = trees.get_shape_dtype(batch)
    if self._job_log_dir is not None:
      input_specs_file.write(host_spec, self._job_log_dir)
    return self.init_spec(host_spec)

  def _put_state(self, state: TrainState) -> TrainState:
    """Returns a restored state as steps take it."""
    return state

  def _initialize_by_rules(
    self, key: jax.Array, *, discard_opt_states: bool
  ) -> tuple[TrainState, TrainState]:
    """Returns a new state, and the origin of each of its arrays."""
    metadata = self._metadata(discard_opt_states=discard_opt_states)
    loader = init_from.LeafLoader(metadata, logging.info)
    if rules := self.task.init_from_checkpoint_rules():
      loader.select_by_rules(rules)
    state = self.initialize(
      key, discard_opt_states=discard_opt_states, loaded=loader.read()
    )
    return state, loader.provenance_tree

  def input_partition_specs(
    self, inputs_shape_dtype: Batch
  ) -> Nested[PartitionSpec] | None:
    """Returns even specs of a global batch; None without a mesh."""
    if not self.is_spmd:
      return None
    return jax.tree.map(
      lambda x: specs.drop_uneven_axes(
        self._batch_spec(len(x.shape)), x.shape, self.mesh
      ),
      inputs_shape_dtype,
    )

  def _factory(self) -> StepFactory:
    return StepFactory(
      task=self.task,
      mesh=self.mesh,
      axis_name=self._axis_name,
      var_weight_hparams=self.var_weight_hparams,
      state_specs=self._state_specs,
      state_metadata=self.state_metadata,
      batch_spec=self._batch_spec,
      parallelize=self._parallelize,
      put_batch=self.put_batch,
    )

  def _cached_step(
    self,
    identity: Hashable,
    batch: Batch,
    make: Callable[[Batch], PartitionedStep],
  ) -> PartitionedStep:
    """Returns the step of this identity for batches of these shapes."""
    leaves, structure = jax.tree.flatten(batch)
    shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
    key = (identity, structure, shapes)
    if key not in self._steps:
      self._steps[key] = make(jax.tree.map(_shape_of, batch))
    return self._steps[key]


def _check_has_mesh(is_spmd: bool, axes: Sequence[str]) -> None:
  if not is_spmd:
    raise ValueError(
      f'opt_states_mesh_axes needs a mesh, got {list(axes)} and data-parallel'
      ' replicas; set ICI_MESH_SHAPE, or opt_states_mesh_axes=()'
    )


def _shape_of(x: jax.Array | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
