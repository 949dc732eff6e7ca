# SPDX-License-Identifier: Apache-2.0
"""SPMD: one program over the global batch, split over the mesh by XLA."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NoReturn, cast

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from typing_extensions import override

from pax import steps, tasks_lib, train_states
from pax.inputs import prefetch
from pax.partitioning import batches, specs
from pax.partitioning import mesh as mesh_lib
from pax.partitioning.partitioner import Partitioner
from pax.partitioning.step_protocols import BoundStep, StepFn
from pax.train_states import Variables
from praxis import base_input, base_layer, base_model, pax_fiddle
from praxis.pytypes import Nested

Batch = steps.Batch
TaskOrConfig = tasks_lib.SingleTask | pax_fiddle.Config[tasks_lib.SingleTask]


class PjitPartitioner(Partitioner):
  """Partitions the state and the steps of a model with a mesh.

  The step is written for the global batch.
  """

  def __init__(
    self,
    init_is_eval: bool,
    reshard_inputs: bool,
    task: TaskOrConfig,
    device_mesh: np.ndarray | None = None,
  ):
    """Makes the mesh that the model declares.

    Args:
      init_is_eval: Whether variables are declared in evaluation mode, unless
        `task.train.always_use_train_for_model_init` is set.
      reshard_inputs: Whether `preprocess_inputs` places batches on the mesh;
        otherwise the steps of `partition` do.
      task: The task, or its Config.
      device_mesh: The devices, in the shape of the mesh; None is all devices.

    Raises:
      ValueError: The mesh does not fit the devices, or its axes have no names.
    """
    super().__init__(init_is_eval)
    self._reshard_inputs = reshard_inputs
    model = task.model
    if device_mesh is None:
      self._global_mesh = create_model_mesh(model)
    else:
      self._global_mesh = Mesh(device_mesh, tuple(_mesh_axis_names(model)))

  @property
  @override
  def mesh(self) -> Mesh:
    """The mesh of the model."""
    return self._global_mesh

  @property
  @override
  def global_mesh(self) -> Mesh:
    """The mesh of the model."""
    return self._global_mesh

  @override
  def init_spec(self, host_spec: Batch) -> Batch:
    """Returns the shapes of the global batch."""
    return batches.global_shapes(host_spec)

  @override
  def preprocess_inputs(
    self,
    input_pipeline: base_input.BaseInput,
    padded_inputs: Batch,
    partition_specs: Nested[PartitionSpec] | None,
  ) -> Batch:
    """Returns the global batch; the host batch without `reshard_inputs`.

    An input with a `reshard_for_spmd` of its own places its batches.

    Args:
      input_pipeline: The input.
      padded_inputs: Its batch.
      partition_specs: Specs of the batch, of `partition`.
    """
    if not self._reshard_inputs:
      return padded_inputs
    input_pipeline = prefetch.source_of(input_pipeline)
    reshard = base_input.BaseInput.reshard_for_spmd
    if type(input_pipeline).reshard_for_spmd is not reshard:
      return input_pipeline.reshard_for_spmd(
        padded_inputs,
        self._global_mesh,
        # With a mesh there are specs.
        cast(Nested[PartitionSpec], partition_specs),
      )
    return self.put_batch(padded_inputs)

  @override
  def _global_shapes(self, init_spec: Batch) -> Batch:
    return init_spec

  @override
  def _make_state_specs(
    self, var_weight_hparams: Variables[base_layer.WeightHParams]
  ) -> train_states.TrainState[PartitionSpec]:
    specs_of_state = self.task.create_train_state_partition_specs(
      var_weight_hparams
    )
    if specs_of_state is None:
      raise ValueError(
        f'{type(self.task).__name__}.create_train_state_partition_specs must'
        ' return PartitionSpecs for a model with a mesh, got None'
      )
    return specs_of_state

  @override
  def _batch_spec(self, rank: int) -> PartitionSpec:
    mapping = self.task.train.inputs_split_mapping
    return specs.batch_spec(mapping, rank, self._global_mesh.axis_names)

  @override
  def _parallelize(self, step: BoundStep, output_specs: Any) -> BoundStep:
    del output_specs
    return step


class AutoShardingPjitPartitioner(PjitPartitioner):
  """Not supported: JAX no longer chooses shardings."""

  @dataclasses.dataclass
  class AutoShardingInfo:
    """The step whose shardings XLA would choose."""

    # The step function.
    step_fn: StepFn
    # Whether the step takes no optimizer states.
    is_eval: bool
    # Shapes and dtypes of the global batch; None is the training batch.
    inputs_shape_dtype: Nested[jax.ShapeDtypeStruct] | None
    # Whether the outputs are replicated.
    replicate_output: bool

  def __init__(
    self,
    init_is_eval: bool,
    reshard_inputs: bool,
    task: TaskOrConfig,
    auto_sharding_info: AutoShardingInfo,
    device_mesh: np.ndarray | None = None,
  ):
    """Raises NotImplementedError.

    Args:
      init_is_eval: Unused.
      reshard_inputs: Unused.
      task: Unused.
      auto_sharding_info: Unused.
      device_mesh: Unused.

    Raises:
      NotImplementedError: Always.
    """
    del init_is_eval, reshard_inputs, task, auto_sharding_info, device_mesh
    raise_no_auto_sharding('AutoShardingPjitPartitioner')


def compile_for_auto_sharding(
  step_fn: Any,
  train_state: train_states.TrainState,
  step_key: jax.Array,
  inputs_shape_dtype: Nested[jax.ShapeDtypeStruct],
  static_args: steps.BaseStepFnStaticArgs | None = None,
) -> NoReturn:
  """Raises NotImplementedError.

  Args:
    step_fn: Unused.
    train_state: Unused.
    step_key: Unused.
    inputs_shape_dtype: Unused.
    static_args: Unused.

  Raises:
    NotImplementedError: Always.
  """
  del step_fn, train_state, step_key, inputs_shape_dtype, static_args
  raise_no_auto_sharding('compile_for_auto_sharding')


def raise_no_auto_sharding(name: str) -> NoReturn:
  """Raises the error of everything that needs automatic sharding.

  Args:
    name: The function, class or argument that needs it.

  Raises:
    NotImplementedError: Always.
  """
  raise NotImplementedError(
    f'{name} needs automatic sharding (pjit.AUTO), which JAX removed; declare'
    ' weight_split_dims_mapping and inputs_split_mapping, and use'
    ' PjitPartitioner (auto_sharding_mode=None)'
  )


def create_model_mesh(
  model: base_model.BaseModel | pax_fiddle.Config[base_model.BaseModel],
  devices: Sequence[jax.Device] | None = None,
) -> Mesh:
  """Returns the mesh that a model declares.

  Args:
    model: The model, or its Config.
    devices: The devices; None is all.

  Raises:
    ValueError: The mesh does not fit the devices, or its axes have no names.
  """
  axis_names = _mesh_axis_names(model)
  if model.ici_mesh_shape is None:
    raise ValueError(
      'task.model.ici_mesh_shape must be the shape of a mesh, got None; set it,'
      ' or use PmapPartitioner'
    )
  return mesh_lib.create_mesh(
    model.ici_mesh_shape,
    model.dcn_mesh_shape,
    axis_names,
    devices=devices,
    contiguous_submeshes=bool(model.contiguous_submeshes),
  )


def _mesh_axis_names(
  model: base_model.BaseModel | pax_fiddle.Config[base_model.BaseModel],
) -> Sequence[str]:
  if not model.mesh_axis_names:
    raise ValueError(
      f'ici_mesh_shape is {model.ici_mesh_shape} and mesh_axis_names is '
      'not set; set task.model.mesh_axis_names, e.g. (replica, data, mdl)'
    )
  return model.mesh_axis_names
