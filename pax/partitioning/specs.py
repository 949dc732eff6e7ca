# SPDX-License-Identifier: Apache-2.0
"""Partition specs of states and batches, made to fit the shapes at hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
from absl import logging
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from praxis import base_layer, py_utils, pytypes

Nested = pytypes.Nested


def fit(
  spec: PartitionSpec, shape: tuple[int, ...], mesh: Mesh
) -> PartitionSpec:
  """Returns `spec` without the mesh axes that do not divide their dimension.

  What crosses the boundary of a jitted function must be split evenly. A
  dimension keeps the longest run of its axes, from the first, whose product
  divides it; the remaining axes hold copies. Inside the function the compiler
  may split as it likes.
  """
  entries = []
  for size, entry in zip(shape, spec, strict=False):
    axes = py_utils.mesh_axes(entry)
    while axes and size % _count(axes, mesh):
      axes = axes[:-1]
    entries.append(_entry(axes))
  return PartitionSpec(*entries)


def is_even(spec: PartitionSpec, shape: tuple[int, ...], mesh: Mesh) -> bool:
  """Returns whether all axes of `spec` divide their dimensions."""
  return fit(spec, shape, mesh) == _plain(spec)


def stored(
  spec: PartitionSpec, shape: tuple[int, ...], mesh: Mesh
) -> PartitionSpec:
  """Returns how an array lies between steps: nothing twice, if possible.

  Axes that do not divide their dimension split another one, which they divide.
  Inside the step the array is split as `spec` says, unevenly.
  """
  wanted = [axis for entry in spec for axis in py_utils.mesh_axes(entry)]
  return split_by(wanted, fit(spec, shape, mesh), shape, mesh)


def split_by(
  wanted: Sequence[str],
  spec: PartitionSpec,
  shape: tuple[int, ...],
  mesh: Mesh,
) -> PartitionSpec:
  """Returns `spec`, which fits, where the axes wanted split something too.

  Each splits the largest dimension that it divides; if there is none, the axis
  holds copies.
  """
  entries = [py_utils.mesh_axes(entry) for entry in spec]
  entries += [()] * (len(shape) - len(entries))
  used = {axis for entry in entries for axis in entry}
  for axis in wanted:
    if axis in used or mesh.shape[axis] == 1:
      continue
    sizes = [
      size // _count(axes, mesh)
      for size, axes in zip(shape, entries, strict=True)
    ]
    fitting = [i for i, n in enumerate(sizes) if n % mesh.shape[axis] == 0]
    if fitting:
      largest = max(fitting, key=lambda i: sizes[i])
      entries[largest] = (*entries[largest], axis)
  return PartitionSpec(*map(_entry, entries))


def num_parts(spec: PartitionSpec, mesh: Mesh) -> int:
  """Returns into how many parts a spec splits an array."""
  return math.prod(_count(py_utils.mesh_axes(entry), mesh) for entry in spec)


def state_shardings(specs: Any, shapes: Any, mesh: Mesh) -> Any:
  """Returns `shapes` with the shardings in which they are stored."""
  copied = []

  def shard(path: Any, shape: Any, spec: PartitionSpec) -> Any:
    found = _plain(spec)
    if not is_even(spec, shape.shape, mesh):
      found = stored(spec, shape.shape, mesh)
      if num_parts(found, mesh) < num_parts(spec, mesh):
        copied.append(f'{jax.tree_util.keystr(path)} {shape.shape} {spec}')
    sharding = NamedSharding(mesh, found)
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

  made = jax.tree_util.tree_map_with_path(shard, shapes, specs)
  if copied:
    logging.warning(
      'several devices of mesh %s hold the same part of what it does not '
      'divide: %s',
      dict(mesh.shape),
      '; '.join(copied),
    )
  return made


def split_metadata(metadata: Any, axes: Sequence[str], mesh: Mesh) -> Any:
  """Returns shapes whose shardings split arrays by these axes too.

  Raises:
    ValueError: the mesh does not have such an axis.
  """
  unknown = [axis for axis in axes if axis not in mesh.shape]
  if unknown:
    raise ValueError(
      f'opt_states_mesh_axes must be axes of the mesh {list(mesh.shape)}, got '
      f'{unknown}; set task.train.opt_states_mesh_axes'
    )

  def split(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    spec = split_by(axes, x.sharding.spec, x.shape, mesh)
    sharding = NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  return jax.tree.map(split, metadata)


def constrain(tree: Any, specs: Any, mesh: Mesh) -> Any:
  """Returns traced arrays, those split that `specs` split unevenly."""

  def one(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    if is_even(spec, x.shape, mesh):
      return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

  return jax.tree.map(one, tree, specs)


def batch_spec(
  inputs_split_mapping: Any, rank: int, mesh_axis_names: tuple[str, ...]
) -> PartitionSpec:
  """Returns how an input of that rank is split.

  `inputs_split_mapping` has a mapping under `map_1d`, `map_2d`, ...; without
  one for the rank, all mesh axes split the batch dimension.
  """
  if rank == 0:
    return PartitionSpec()
  mapping = (inputs_split_mapping or {}).get(f'map_{rank}d')
  if mapping is None:
    return PartitionSpec(mesh_axis_names)
  return base_layer.to_partition_spec(mapping, mesh_axis_names)


def _plain(spec: PartitionSpec) -> PartitionSpec:
  """Returns `spec` spelled as `fit` spells it."""
  return PartitionSpec(*(_entry(py_utils.mesh_axes(entry)) for entry in spec))


def _entry(axes: tuple[str, ...]) -> Any:
  return axes[0] if len(axes) == 1 else axes or None


def _count(axes: tuple[str, ...], mesh: Mesh) -> int:
  return math.prod(mesh.shape[axis] for axis in axes)
