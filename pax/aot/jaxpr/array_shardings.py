# SPDX-License-Identifier: Apache-2.0
"""Shardings of a jaxpr's arrays, inferred from their shapes."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator

import jax
from jax.extend import core as jex_core
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from pax import partitioning
from pax.aot.jaxpr import jaxpr_walk
from praxis import py_utils

# The mesh axes of each dimension.
DimAxes = tuple[tuple[str, ...], ...]


class ArrayShardings:
  """Infers the mesh axes of each dimension of an array.

  An array with the shape of a state variable, or of one layer of a stacked
  variable, has the variable's sharding; one with the shape of an operand or a
  result of a shard_map, or of a stack of them, is sharded as there. In other
  arrays a dimension has the axes that sharding constraints and inputs use most
  for dimensions of its size, of those that no dimension before it has.
  """

  def __init__(
    self, jaxpr: jex_core.Jaxpr, partitioner: partitioning.Partitioner
  ):
    self._mesh_shape = dict(partitioner.mesh.shape)
    state = jax.tree.leaves(partitioner.state_metadata)
    self._state_types = {(tuple(x.shape), x.dtype) for x in state}
    self._axes_by_shape: dict[tuple[int, ...], DimAxes] = {}
    # By the shape of one array of a stack, as of a scan.
    self._stacked_axes_by_shape: dict[tuple[int, ...], DimAxes] = {}
    for leaf in state:
      shape = tuple(leaf.shape)
      axes = _dim_axes(leaf.sharding.spec, len(shape))
      self._axes_by_shape.setdefault(shape, axes)
      if len(shape) > 2 and not axes[0]:
        self._axes_by_shape.setdefault(shape[1:], axes[1:])
    for shape, axes in _shard_map_arrays(jaxpr):
      self._axes_by_shape.setdefault(shape, axes)
      self._stacked_axes_by_shape.setdefault(shape, ((), *axes))
    inputs = jax.tree.leaves(partitioner.input_spec)
    self._axes_by_dim_size = _axes_by_use(
      [*((x.shape, x.sharding) for x in inputs), *_constraints(jaxpr)]
    )

  def is_state(self, array: jaxpr_walk.Var) -> bool:
    """Whether a state variable of rank 2 or more has its shape and dtype."""
    shape = jaxpr_walk.shape(array)
    dtype = jaxpr_walk.array_type(array).dtype
    return len(shape) > 1 and (shape, dtype) in self._state_types

  def dim_axes(self, shape: tuple[int, ...]) -> DimAxes:
    """Returns the mesh axes that shard each dimension of an array."""
    if shape in self._axes_by_shape:
      return self._axes_by_shape[shape]
    if shape[1:] in self._stacked_axes_by_shape:
      return self._stacked_axes_by_shape[shape[1:]]
    dim_axes: list[tuple[str, ...]] = []
    used: set[str] = set()
    for dim_size in shape:
      choices = (
        tuple(
          axis
          for axis in choice
          if axis not in used and dim_size % self._mesh_shape[axis] == 0
        )
        for choice in self._axes_by_dim_size.get(dim_size, ())
      )
      axes = next(filter(None, choices), ())
      used.update(axes)
      dim_axes.append(axes)
    return tuple(dim_axes)

  def num_shards(self, axes: tuple[str, ...]) -> int:
    """Returns the number of shards along mesh axes."""
    return math.prod(self._mesh_shape[axis] for axis in axes)

  def bytes_per_device(self, variable: jaxpr_walk.Var) -> float:
    """Returns the bytes of an array's shard."""
    axes = self.dim_axes(jaxpr_walk.shape(variable))
    return jaxpr_walk.global_bytes(variable) / self.num_shards(sum(axes, ()))


def _axes_by_use(
  shardings: list[tuple[tuple[int, ...], Sharding]],
) -> dict[int, list[tuple[str, ...]]]:
  """Maps a dimension's size to the axes of such dimensions, most used first.

  Sizes may coincide: a pipeline may have as many stages as rows in a
  microbatch.
  """
  counts: dict[int, collections.Counter[tuple[str, ...]]] = {}
  for shape, sharding in shardings:
    if isinstance(sharding, NamedSharding):
      for dim_size, entry in zip(shape, sharding.spec, strict=False):
        if entry is not PartitionSpec.UNCONSTRAINED:
          counter = counts.setdefault(dim_size, collections.Counter())
          counter[py_utils.mesh_axes(entry)] += 1
  return {
    dim_size: [axes for axes, _ in counter.most_common() if axes]
    for dim_size, counter in counts.items()
  }


def _dim_axes(spec: PartitionSpec, rank: int) -> DimAxes:
  axes = [py_utils.mesh_axes(entry) for entry in spec]
  return tuple(axes + [()] * (rank - len(axes)))


def _shard_map_arrays(
  jaxpr: jex_core.Jaxpr,
) -> Iterator[tuple[tuple[int, ...], DimAxes]]:
  """Shape and mesh axes of each sharded operand and result of a shard_map."""
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == 'shard_map':
      arrays = [*eqn.invars, *eqn.outvars]
      specs = [*eqn.params['in_specs'], *eqn.params['out_specs']]
      for array, spec in zip(arrays, specs, strict=True):
        shape = jaxpr_walk.shape(array)
        if any(axes := _dim_axes(spec, len(shape))):
          yield shape, axes
    for sub_jaxpr in py_utils.sub_jaxprs(eqn):
      yield from _shard_map_arrays(sub_jaxpr)


def _constraints(
  jaxpr: jex_core.Jaxpr,
) -> Iterator[tuple[tuple[int, ...], Sharding]]:
  """Shape and sharding of each sharding constraint, of sub-jaxprs too."""
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == 'sharding_constraint':
      yield jaxpr_walk.shape(eqn.outvars[0]), eqn.params['sharding']
    for sub_jaxpr in py_utils.sub_jaxprs(eqn):
      yield from _constraints(sub_jaxpr)
