# SPDX-License-Identifier: Apache-2.0
"""Sharding annotations of weights and activations, and their application."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import inspect
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from praxis import pax_fiddle, py_utils
from praxis.base_layer import jax_context
from praxis.pytypes import (
  DimShardingAnnotation,
  JTensor,
  Nested,
  SplitDimsMapping,
)

_MATRIX_AXES: contextvars.ContextVar[frozenset[str] | None] = (
  contextvars.ContextVar('matrix_axes', default=None)
)


class _Sharding:
  """A base class whose subclasses become frozen, keyword-only dataclasses."""

  def __init_subclass__(cls, **kwargs: Any) -> None:
    super().__init_subclass__(**kwargs)
    dataclasses.dataclass(frozen=True, kw_only=True)(cls)


class WeightSharding(_Sharding):
  """Shardings of a layer's weights; layers add fields for further weights."""

  # The layer's main weight.
  wt: SplitDimsMapping = None


class ActivationSharding(_Sharding):
  """Shardings of a layer's activations."""

  # The layer's output.
  out: SplitDimsMapping = None


def to_partition_spec(
  split_dims_mapping: SplitDimsMapping,
  mesh_axis_names: Sequence[str] | None,
) -> PartitionSpec:
  """Returns the PartitionSpec of a mapping (pytypes.SplitDimsMapping).

  Raises:
    ValueError: an axis is not in the mesh, or shards two dimensions.
  """
  mapping, names = split_dims_mapping or (), mesh_axis_names or ()
  entries = [_axes(entry, names) for entry in mapping]
  axes = [axis for entry in entries for axis in py_utils.mesh_axes(entry)]
  if repeated := {axis for axis in axes if axes.count(axis) > 1}:
    raise ValueError(
      f'split_dims_mapping {list(mapping)} uses mesh axis '
      f'{sorted(repeated)} for two dimensions; an axis can split only one'
    )
  return PartitionSpec(*entries)


def var_partition_specs(
  var_specs: Nested[Any],
  mesh_shape: Sequence[int] | None,
  device_axis_names: Sequence[str] | None,
) -> Nested[PartitionSpec]:
  """Returns the PartitionSpec of each WeightHParams in a tree."""

  def spec(hparams: Any) -> PartitionSpec:
    mapping = hparams.full_split_dims_mapping
    if mesh_shape is None or mapping is None:
      return PartitionSpec()
    return to_partition_spec(mapping, device_axis_names)

  is_leaf = lambda x: hasattr(x, 'full_split_dims_mapping')
  return jax.tree.map(spec, var_specs, is_leaf=is_leaf)


def transpose_one_axis(
  axis: str | None, mesh_axes_transpose: Mapping[str, str | None] | None
) -> str | None:
  """Returns the new name of a mesh axis, by default its own.

  None means that the dimension is replicated.
  """
  if axis is None or mesh_axes_transpose is None:
    return axis
  return mesh_axes_transpose.get(axis, axis)


def maybe_transpose_mesh_axes(partition_spec: PartitionSpec) -> PartitionSpec:
  """Returns a spec of activations as XLA gets it.

  Axes are renamed by the context's mesh_axes_transpose, and those of a
  dimension are in the order of `axes_of_dimension`.
  """
  names = jax_context.cur_jax_context().hparams.mesh_axes_transpose

  def rename(entry: Any) -> Any:
    if isinstance(entry, tuple):
      renamed = (transpose_one_axis(axis, names) for axis in entry)
      axes = tuple(axis for axis in renamed if axis is not None)
      return axes_of_dimension(axes) or None
    return transpose_one_axis(entry, names)

  return PartitionSpec(*map(rename, partition_spec))


@contextlib.contextmanager
def matrices_sharded_over(axes: frozenset[str]) -> Iterator[None]:
  """Sets the axes of weights for `axes_of_dimension` in a `with` block.

  Args:
    axes: those that alone shard a dimension of a weight.
  """
  token = _MATRIX_AXES.set(axes)
  try:
    yield
  finally:
    _MATRIX_AXES.reset(token)


def merge_splits(
  splits: Sequence[DimShardingAnnotation],
) -> tuple[str | int, ...] | None:
  """Returns the axes that shard a dimension that is made of several.

  Args:
    splits: those of these dimensions.
  """
  merged: list[str | int] = []
  for axes in splits:
    if isinstance(axes, str | int):
      merged.append(axes)
    elif axes is not None:
      merged.extend(axes)
  return tuple(axis for axis in merged if axis != -1) or None


def axes_of_dimension(axes: tuple[str, ...]) -> tuple[str, ...]:
  """Returns the axes that shard a dimension of an activation, in XLA's order.

  On CPUs and GPUs XLA gives devices rows of others in products of rows that are
  sharded over ('replica', 'data') and a weight that is sharded over 'data', if
  another axis is as large as 'data'. It does not if the rows are sharded over
  ('data', 'replica') (docs/known_issues.md). Axes of weights therefore come
  first; outside of `matrices_sharded_over` these are all but the first.
  """
  sizes = jax.sharding.get_abstract_mesh().shape
  many = [axis for axis in axes if sizes.get(axis, 1) > 1]
  others = {size for axis, size in sizes.items() if axis not in axes}
  matrix_axes = _MATRIX_AXES.get()
  if matrix_axes is None:
    matrix_axes = frozenset(many[1:])
  if py_utils.target_platform() == 'tpu' or others.isdisjoint(
    sizes[axis] for axis in many[1:] if axis in matrix_axes
  ):
    return axes
  return tuple(sorted(axes, key=lambda axis: axis not in matrix_axes))


def maybe_shard(
  x: JTensor,
  split_dims_mapping: SplitDimsMapping = None,
  mesh_axis_names: Sequence[str] | None = None,
  unconstrained_dims: Sequence[int] | None = None,
) -> JTensor:
  """Constrains the sharding of `x`; returns it unchanged without a mesh.

  Args:
    x: the array.
    split_dims_mapping: one entry per dimension; None: no constraint. Axes are
      renamed by `mesh_axes_transpose` of the JaxContext.
    mesh_axis_names: names of the mesh axes.
    unconstrained_dims: dimensions whose sharding the compiler chooses.

  Raises:
    ValueError: the mapping and `x` differ in the number of dimensions.
  """
  if not mesh_axis_names or split_dims_mapping is None:
    return x
  if len(split_dims_mapping) != x.ndim:
    raise ValueError(
      f'split_dims_mapping must have {x.ndim} entries for shape {x.shape}, '
      f'got {list(split_dims_mapping)}'
    )
  if jax.sharding.get_abstract_mesh().empty:
    return x
  spec = to_partition_spec(split_dims_mapping, mesh_axis_names)
  entries = list(maybe_transpose_mesh_axes(spec))
  for dim in unconstrained_dims or ():
    entries[dim] = PartitionSpec.UNCONSTRAINED
  return jax.lax.with_sharding_constraint(x, PartitionSpec(*entries))


def zero_shard_padding(x: JTensor, num_dims: int) -> JTensor:
  """Returns `x`, with zeros in what XLA appends to its last shards.

  XLA pads the shards of a dimension that does not divide by its mesh axes. If
  the rows of a table are added up by id, as scatters and the gradients of
  gathers do, it adds the padding to row 0 (docs/known_issues.md). The zeros are
  in the padding of the gradient, too.

  Args:
    x: what is added, or what is gathered.
    num_dims: the number of leading dimensions, which are those of the ids.
  """
  num_devices = jax.sharding.get_abstract_mesh().size or 1
  for dim, size in enumerate(x.shape[:num_dims]):
    if size % num_devices:
      # The barrier hides from XLA that the condition always holds.
      index = jax.lax.optimization_barrier(jnp.arange(size))
      is_inside = jnp.expand_dims(index < size, range(1, x.ndim - dim))
      x = jnp.where(is_inside, x, jnp.zeros_like(x))
  return x


def replicate_dims(x: JTensor, dims: Container[int]) -> JTensor:
  """Returns `x` replicated along `dims`; XLA chooses the other shardings."""
  entries = [
    None if dim in dims else PartitionSpec.UNCONSTRAINED
    for dim in range(x.ndim)
  ]
  return jax.lax.with_sharding_constraint(x, PartitionSpec(*entries))


def _axes(
  entry: DimShardingAnnotation, names: Sequence[str]
) -> str | tuple[str, ...] | None:
  if entry is None or entry == -1:
    return None
  if isinstance(entry, int):
    return names[entry]
  if isinstance(entry, str):
    if entry not in names:
      raise ValueError(
        f'mesh axis {entry!r} is not in mesh_axis_names {list(names)}'
      )
    return entry
  axes = (_axes(e, names) for e in entry)
  return tuple(axis for axis in axes if isinstance(axis, str))


def lift_shardings(cls: type) -> None:
  """Makes the nested sharding classes the templates of the sharding fields."""
  for kind, field in (
    ('WeightSharding', 'weight_split_dims_mapping'),
    ('ActivationSharding', 'activation_split_dims_mapping'),
  ):
    nested = cls.__dict__.get(kind)
    if nested is None and len(cls.__bases__) > 1:
      # A dataclass takes the field of its first base, which may be that of
      # BaseLayer.
      nested = getattr(cls, kind)
    elif nested is None:
      continue
    base = next(getattr(b, kind) for b in cls.__bases__ if hasattr(b, kind))
    if not issubclass(nested, base):
      raise ValueError(
        f'{cls.__name__}.{kind} must derive from {base.__qualname__}; '
        f'declare `class {kind}({base.__qualname__})`'
      )
    cls.__annotations__ = {
      **inspect.get_annotations(cls),
      field: pax_fiddle.Config,
    }
    setattr(cls, field, pax_fiddle.template_field(nested))
