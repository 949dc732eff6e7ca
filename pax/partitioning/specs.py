# SPDX-License-Identifier: Apache-2.0
"""Partition specs of states and batches, made to fit the shapes at hand."""

from __future__ import annotations

import math
from typing import Any

import jax
from absl import logging
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from praxis import base_layer, pytypes

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
    axes = (entry,) if isinstance(entry, str) else tuple(entry or ())
    while axes and size % math.prod(mesh.shape[axis] for axis in axes):
      axes = axes[:-1]
    entries.append(axes[0] if len(axes) == 1 else axes or None)
  return PartitionSpec(*entries)


def state_shardings(specs: Any, shapes: Any, mesh: Mesh) -> Any:
  """Returns `shapes` with the sharding that `specs` ask for, made to fit."""
  uneven = []

  def shard(path: Any, shape: Any, spec: PartitionSpec) -> Any:
    fitting = fit(spec, shape.shape, mesh)
    if fitting != _plain(spec):
      uneven.append(f'{jax.tree_util.keystr(path)} {shape.shape} {spec}')
    sharding = NamedSharding(mesh, fitting)
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

  made = jax.tree_util.tree_map_with_path(shard, shapes, specs)
  if uneven:
    logging.warning(
      'dimensions that mesh %s does not divide are kept whole: %s',
      dict(mesh.shape),
      '; '.join(uneven),
    )
  return made


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
  entries = []
  for entry in spec:
    axes = (entry,) if isinstance(entry, str) else tuple(entry or ())
    entries.append(axes[0] if len(axes) == 1 else axes or None)
  return PartitionSpec(*entries)
