# SPDX-License-Identifier: Apache-2.0
"""Shapes and partition specs of inputs.

The partitioners of `pax.partitioning` do this by themselves; these functions
serve code that partitions its own steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from pax import tasks_lib
from praxis import base_input, base_layer, pax_fiddle, py_utils
from praxis.pytypes import Nested

InputConfig = pax_fiddle.Config[base_input.BaseInput]


def get_inputs_shape_dtype(
  input_config: InputConfig,
) -> tuple[Nested[jax.ShapeDtypeStruct], Nested[jax.ShapeDtypeStruct]]:
  """Returns the shapes of this host's batch and of the global batch.

  Instantiates the input and reads one batch from it.
  """
  batch = input_config.Instantiate().get_next_padded()
  host = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
  return host, jax.tree.map(py_utils.get_global_input_shape_dtype, host)


def get_train_input_specs_for_model_init(
  task: tasks_lib.SingleTask,
  input_specs_provider: base_input.BaseInputSpecsProvider,
) -> Nested[jax.ShapeDtypeStruct]:
  """Returns the shapes of a batch: the global batch if the model has a mesh."""
  specs = input_specs_provider.get_input_specs()
  if task.model.mesh_shape is None:
    return specs
  return jax.tree.map(py_utils.get_global_input_shape_dtype, specs)


def shard_on_batch_dim_partition_spec(
  mesh_names: Sequence[str], x: jax.ShapeDtypeStruct
) -> PartitionSpec:
  """Returns the spec that shards the first dimension over all mesh axes.

  Raises:
    ValueError: `x` is a scalar.
  """
  if not x.shape:
    raise ValueError('an input must have a first dimension, got a scalar')
  mapping: base_layer.SplitDimsMapping = [
    tuple(mesh_names),
    *[-1] * (len(x.shape) - 1),
  ]
  return base_layer.to_partition_spec(mapping, mesh_names)


def get_input_partition_specs(
  mesh_axis_names: Sequence[str],
  inputs_shape_dtype: Nested[jax.ShapeDtypeStruct],
) -> Nested[PartitionSpec]:
  """Returns specs that shard the rows of a batch over all mesh axes."""
  return jax.tree.map(
    lambda x: shard_on_batch_dim_partition_spec(mesh_axis_names, x),
    inputs_shape_dtype,
  )


def reshard_input_based_on_rank_fn(
  mapping_dict: Mapping[str, base_layer.SplitDimsMapping] | None,
  mesh_names: Sequence[str],
  x: jax.Array,
) -> jax.Array:
  """Returns a traced input with the sharding for its rank.

  Args:
    mapping_dict: Mappings under `map_1d`, `map_2d`, ..., None for an unchanged
      sharding; without a dict all shardings are unchanged.
    mesh_names: Names of the mesh axes.
    x: The input.

  Raises:
    ValueError: There is no mapping for the rank.
  """
  if mapping_dict is None:
    return x
  key = f'map_{x.ndim}d'
  if key not in mapping_dict:
    raise ValueError(
      f'Split mapping must be provided for {x.ndim}-d inputs as {key!r}, got'
      f' {sorted(mapping_dict)}; add it to task.train.inputs_split_mapping'
    )
  mapping = mapping_dict[key]
  return (
    x if mapping is None else base_layer.maybe_shard(x, mapping, mesh_names)
  )


def adjust_input_params_for_small_batch(
  input_p: InputConfig, global_mesh: Mesh
) -> InputConfig:
  """Returns a Config whose padded batch has a multiple of rows of the devices.

  Steps of `Partitioner.partition` remove the padding when their static
  arguments have the number of rows. A Config that needs no padding is returned
  itself.

  Args:
    input_p: The Config of the input.
    global_mesh: Unused: padding does not depend on the order of devices.

  Raises:
    NotImplementedError: Several processes would have to pad.
  """
  del global_mesh
  if input_p.experimental_remote_input:
    return input_p
  num_devices = jax.local_device_count()
  num_rows = input_p.cls.get_batch_size(input_p)
  reads_everywhere = input_p.num_infeed_hosts == jax.process_count()
  if num_rows % num_devices == 0 and reads_everywhere:
    return input_p
  if jax.process_count() > 1:
    raise NotImplementedError(
      'adjust_input_params_for_small_batch cannot pad the batches of several'
      f' processes, got {num_rows} rows for {num_devices} local devices and'
      f' num_infeed_hosts={input_p.num_infeed_hosts}; leave it out:'
      ' partitioners shard such batches without padding'
    )
  return input_p.clone().set(batch_padding_size=-num_rows % num_devices)


@dataclasses.dataclass(frozen=True)
class _MeshBound:
  """A jitted function, and its `lower`, with a mesh as context."""

  fn: jax.stages.Wrapped
  mesh: Mesh

  def __call__(self, *args: Any) -> Any:
    with jax.set_mesh(self.mesh):
      return self.fn(*args)

  def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
    with jax.set_mesh(self.mesh):
      return self.fn.lower(*args, **kwargs)


def bind_mesh(pjitted_fn: jax.stages.Wrapped, global_mesh: Mesh) -> _MeshBound:
  """Returns a jitted function, and its `lower`, with the mesh as context."""
  return _MeshBound(pjitted_fn, global_mesh)
