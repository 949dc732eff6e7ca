# SPDX-License-Identifier: Apache-2.0
"""Partition specs of states and batches, adapted to shapes and mesh."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax
from absl import logging
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from praxis import base_layer, py_utils
from praxis.pytypes import Nested

NestedShapes = Nested[jax.ShapeDtypeStruct]
# Any pytree, such as a TrainState.
TreeT = TypeVar('TreeT')
# Entry of a PartitionSpec: the mesh axes of one dimension.
SpecEntry = str | tuple[str, ...] | None


def drop_uneven_axes(
  spec: PartitionSpec, shape: tuple[int, ...], mesh: Mesh
) -> PartitionSpec:
  """Returns `spec` without the mesh axes that do not divide their dimension.

  Arguments and results of a jitted function must be sharded evenly; inside it
  XLA also shards unevenly. A dimension keeps the longest prefix of its axes
  whose product divides it; the array is replicated over the other axes.

  Args:
    spec: The spec.
    shape: Shape of the array.
    mesh: The mesh.
  """
  entries = []
  for size, entry in zip(shape, spec, strict=False):
    axes = py_utils.mesh_axes(entry)
    while axes and size % _num_devices(axes, mesh):
      axes = axes[:-1]
    entries.append(_entry(axes))
  return PartitionSpec(*entries)


def is_even(spec: PartitionSpec, shape: tuple[int, ...], mesh: Mesh) -> bool:
  """Returns whether all axes of `spec` divide their dimensions."""
  return drop_uneven_axes(spec, shape, mesh) == _normalize(spec)


def matrix_axes(var_specs: Nested[PartitionSpec], mesh: Mesh) -> frozenset[str]:
  """Returns the axes that alone shard one of several sharded dimensions.

  Activations are sharded first over them (`base_layer.matrices_sharded_over`).

  Args:
    var_specs: Specs of variables.
    mesh: The mesh.
  """
  found: set[str] = set()
  for spec in jax.tree.leaves(var_specs):
    axes_by_dim = [
      [axis for axis in py_utils.mesh_axes(entry) if mesh.shape[axis] > 1]
      for entry in spec
    ]
    sharded = [axes for axes in axes_by_dim if axes]
    if len(sharded) > 1:
      found.update(axes[0] for axes in sharded if len(axes) == 1)
  return frozenset(found)


def storage_spec(
  spec: PartitionSpec, shape: tuple[int, ...], mesh: Mesh
) -> PartitionSpec:
  """Returns the spec of an array between steps.

  Axes that do not divide their dimension shard another dimension that they
  divide, so that the array is not replicated. Within a step it has the uneven
  sharding `spec`.
  """
  declared_axes = [axis for entry in spec for axis in py_utils.mesh_axes(entry)]
  return add_axes(
    declared_axes, drop_uneven_axes(spec, shape, mesh), shape, mesh
  )


def add_axes(
  axes: Sequence[str],
  spec: PartitionSpec,
  shape: tuple[int, ...],
  mesh: Mesh,
) -> PartitionSpec:
  """Returns an even spec extended by further mesh axes.

  Each axis shards the dimension with the largest shard that it divides; the
  array is replicated over axes that divide no dimension.

  Args:
    axes: The axes to add.
    spec: The spec to extend.
    shape: Shape of the array.
    mesh: The mesh.
  """
  entries = [py_utils.mesh_axes(entry) for entry in spec]
  entries += [()] * (len(shape) - len(entries))
  used = {axis for entry in entries for axis in entry}
  for axis in axes:
    if axis in used or mesh.shape[axis] == 1:
      continue
    shard_sizes = [
      size // _num_devices(entry, mesh)
      for size, entry in zip(shape, entries, strict=True)
    ]
    divisible = [
      dim
      for dim, size in enumerate(shard_sizes)
      if size % mesh.shape[axis] == 0
    ]
    if divisible:
      largest = max(divisible, key=lambda dim: shard_sizes[dim])
      entries[largest] = (*entries[largest], axis)
  return PartitionSpec(*map(_entry, entries))


def num_shards(spec: PartitionSpec, mesh: Mesh) -> int:
  """Returns the number of different shards of an array."""
  return math.prod(
    _num_devices(py_utils.mesh_axes(entry), mesh) for entry in spec
  )


def state_shardings(specs: Any, shapes: TreeT, mesh: Mesh) -> TreeT:
  """Returns `shapes` with the shardings of the arrays between steps.

  Args:
    specs: A pytree of PartitionSpecs like `shapes`.
    shapes: A pytree of ShapeDtypeStructs.
    mesh: The mesh.
  """
  replicated: list[str] = []

  def shard(
    path: tuple[Any, ...], x: jax.ShapeDtypeStruct, spec: PartitionSpec
  ) -> jax.ShapeDtypeStruct:
    even_spec = _normalize(spec)
    if not is_even(spec, x.shape, mesh):
      even_spec = storage_spec(spec, x.shape, mesh)
      if num_shards(even_spec, mesh) < num_shards(spec, mesh):
        replicated.append(f'{jax.tree_util.keystr(path)} {x.shape} {spec}')
    sharding = NamedSharding(mesh, even_spec)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  sharded = jax.tree_util.tree_map_with_path(shard, shapes, specs)
  if replicated:
    logging.warning(
      'replicated over axes of the mesh %s that do not divide them: %s',
      dict(mesh.shape),
      '; '.join(replicated),
    )
  return sharded


def shard_over_axes(metadata: TreeT, axes: Sequence[str], mesh: Mesh) -> TreeT:
  """Returns shapes whose shardings use these mesh axes too.

  Raises:
    ValueError: The mesh does not have such an axis.
  """
  unknown = [axis for axis in axes if axis not in mesh.shape]
  if unknown:
    raise ValueError(
      f'opt_states_mesh_axes must be axes of the mesh {list(mesh.shape)}, got '
      f'{unknown}; set task.train.opt_states_mesh_axes'
    )

  def shard(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    spec = add_axes(axes, x.sharding.spec, x.shape, mesh)
    sharding = NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  return jax.tree.map(shard, metadata)


def constrain_uneven(tree: TreeT, specs: Any, mesh: Mesh) -> TreeT:
  """Applies the uneven specs to traced arrays; even ones hold already."""

  def constrain(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    if is_even(spec, x.shape, mesh):
      return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

  return jax.tree.map(constrain, tree, specs)


def filter_nestedmap(full_specs: Any, partial_specs: Any) -> Any:
  """Returns the entries of `full_specs` whose keys `partial_specs` has.

  Args:
    full_specs: Nested dicts and lists.
    partial_specs: A tree with some of their keys, and with lists of the same
      length.

  Raises:
    KeyError: `partial_specs` has a key that `full_specs` lacks.
    ValueError: Two lists differ in length.
  """
  if isinstance(full_specs, dict):
    return type(full_specs)(
      {
        key: filter_nestedmap(full_specs[key], value)
        for key, value in partial_specs.items()
      }
    )
  if isinstance(full_specs, list):
    if len(full_specs) != len(partial_specs):
      raise ValueError(
        f'Length mismatch: full_specs has {len(full_specs)} entries and'
        f' partial_specs {len(partial_specs)}; give both the same layers'
      )
    return [
      filter_nestedmap(full, partial)
      for full, partial in zip(full_specs, partial_specs, strict=True)
    ]
  return full_specs


def batch_spec(
  inputs_split_mapping: Mapping[str, Any] | None,
  rank: int,
  mesh_axis_names: tuple[str, ...],
) -> PartitionSpec:
  """Returns the spec of an input of this rank.

  Args:
    inputs_split_mapping: Mappings under `map_1d`, `map_2d`, ...; without one
      for the rank, all mesh axes shard the batch dimension.
    rank: Number of dimensions of the input.
    mesh_axis_names: Axes of the mesh.

  Raises:
    ValueError: The mapping has more entries than dimensions, or does not fit
      the axes.
  """
  if rank == 0:
    return PartitionSpec()
  mapping = (inputs_split_mapping or {}).get(f'map_{rank}d')
  if mapping is None:
    return PartitionSpec(mesh_axis_names)
  if len(mapping) > rank:
    raise ValueError(
      f'inputs_split_mapping.map_{rank}d must have at most {rank} entries, one '
      f'per dimension, got {mapping}; set task.train.inputs_split_mapping'
    )
  return base_layer.to_partition_spec(mapping, mesh_axis_names)


def _normalize(spec: PartitionSpec) -> PartitionSpec:
  """Returns the spec in the form that `drop_uneven_axes` returns."""
  return PartitionSpec(*(_entry(py_utils.mesh_axes(entry)) for entry in spec))


def _entry(axes: tuple[str, ...]) -> SpecEntry:
  return axes[0] if len(axes) == 1 else axes or None


def _num_devices(axes: tuple[str, ...], mesh: Mesh) -> int:
  return math.prod(mesh.shape[axis] for axis in axes)
