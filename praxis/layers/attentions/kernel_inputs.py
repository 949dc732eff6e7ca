# SPDX-License-Identifier: Apache-2.0
"""Inputs of the fused attention kernels, and the mesh axes that shard them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, PartitionSpec
from jaxtyping import Array, Float, Shaped

from praxis import base_layer, py_utils, pytypes
from praxis.layers.attentions import masks, segments

# Kernels take segments, not arrays.
Mask = segments.SegmentMask | Shaped[Array, '#B #N #T S']


class Heads(NamedTuple):
  """Queries, keys and values; keys of one head may have no head axis."""

  query: Float[Array, 'B T N H']
  key: Float[Array, 'B T *K H']
  # V is H but where values have another dimension than keys.
  value: Float[Array, 'B T *K V']

  @property
  def num_kv_heads(self) -> int:
    return self.key.shape[2] if len(self.key.shape) == 4 else 1

  def empty_reason(self) -> str | None:
    """Returns that there are no queries, for kernels in Pallas, or None."""
    shape = self.query.shape
    return f'queries {shape} without elements' if 0 in shape else None

  def with_head_axis(self) -> Heads:
    """Returns keys and values with an axis of heads."""
    if self.key.ndim == 4:
      return self
    key, value = (x[:, :, jnp.newaxis] for x in (self.key, self.value))
    return Heads(self.query, key, value)

  def with_padded_values(self) -> Heads:
    """Returns values with zeros up to the dimension of keys."""
    value = py_utils.pad_to_multiple(
      self.value, self.value.ndim - 1, self.key.shape[-1]
    )
    return self._replace(value=value)

  def for_shards(self, shards: int) -> Heads:
    """Returns keys and values with heads that a number of shards divides.

    A single head is not sharded.

    Args:
      shards: of the heads of queries.
    """
    heads = self.with_head_axis()
    if self.num_kv_heads == 1 or self.num_kv_heads % shards == 0:
      return heads
    times = shards // self.num_kv_heads
    key, value = (jnp.repeat(x, times, axis=2) for x in heads[1:])
    return Heads(heads.query, key, value)


@dataclasses.dataclass(frozen=True)
class KernelSpec:
  """The mask, the cap and the sharding of the attention of a sequence."""

  mask: segments.SegmentMask
  # Hides positions further away; None for no limit.
  window: masks.ContextWindow | None = None
  # cap * tanh(logits / cap); None, 0 or less disables it.
  logit_cap: float | None = None
  # Mesh axes of the dimensions of the queries.
  split: pytypes.SplitDimsMapping = None
  # A logit that is only in the denominator: of all heads, or one for each.
  extra_logit: float | Float[Array, ' N'] | None = None

  @property
  def soft_cap(self) -> float | None:
    """The cap; None if it is disabled."""
    return self.logit_cap if self.logit_cap and self.logit_cap > 0.0 else None

  def sinks(self, num_heads: int) -> Float[Array, ' N'] | None:
    """Returns the extra logit of each head, or None."""
    if self.extra_logit is None:
      return None
    return jnp.broadcast_to(
      jnp.asarray(self.extra_logit, jnp.float32), (num_heads,)
    )


class HeadAxes(NamedTuple):
  """The mesh axes that shard each dimension of the queries."""

  batch: tuple[str, ...]
  length: tuple[str, ...]
  heads: tuple[str, ...]
  head_dim: tuple[str, ...]

  @classmethod
  def of(cls, split: pytypes.SplitDimsMapping, mesh: AbstractMesh) -> HeadAxes:
    """Returns the axes of a split that the mesh has.

    Args:
      split: one entry per dimension. Axes are renamed by `mesh_axes_transpose`
        of the JaxContext.
      mesh: over which the arrays are sharded; empty for one device.
    """
    names = mesh.axis_names
    new_names = base_layer.cur_jax_context().hparams.mesh_axes_transpose
    # -1 is no axis, nor is any index without a mesh.

    def axes(entry: pytypes.DimShardingAnnotation) -> tuple[str, ...]:
      entries = (
        (entry,) if isinstance(entry, int) else py_utils.mesh_axes(entry)
      )
      named = (
        names[e : e + 1] if isinstance(e, int) else (e,) for e in entries
      )
      renamed = (
        base_layer.transpose_one_axis(n, new_names)
        for (n,) in filter(None, named)
      )
      known = tuple(n for n in renamed if n is not None and n in names)
      return base_layer.axes_of_dimension(known)

    return cls(*map(axes, split or [None] * 4))

  def query_spec(self) -> PartitionSpec:
    """Returns the sharding of the queries."""
    return PartitionSpec(*(axes or None for axes in self[:3]))

  def sinks_spec(self) -> PartitionSpec:
    """Returns the sharding of what is one number for each head of queries."""
    return PartitionSpec(self.heads or None)

  def key_spec(self, num_kv_heads: int) -> PartitionSpec:
    """Returns the sharding of keys and values: whole sequences."""
    heads = self.heads if num_kv_heads > 1 else ()
    return PartitionSpec(self.batch or None, None, heads or None)


def num_devices(mesh: AbstractMesh, axes: tuple[str, ...]) -> int:
  """Returns the number of devices along mesh axes."""
  return math.prod(mesh.shape[axis] for axis in axes)


def reason_against(
  heads: Heads, spec: KernelSpec, mesh: AbstractMesh
) -> str | None:
  """Returns a property that no kernel supports, or None.

  Args:
    heads: arrays, or their shapes.
    spec: of the attention.
    mesh: over which the arrays are sharded; empty for one device.
  """
  if heads.key.shape[1] != heads.query.shape[1]:
    return (
      f'queries {heads.query.shape} with keys {heads.key.shape} of another '
      'length'
    )
  if heads.value.shape[-1] > heads.key.shape[-1]:
    return f'values {heads.value.shape} of a larger dimension than keys'
  if spec.window and spec.window.left is not None and spec.window.left < 1:
    return "a window without the query's own position"
  return _sharding_reason(heads, HeadAxes.of(spec.split, mesh), mesh)


def _sharding_reason(
  heads: Heads, axes: HeadAxes, mesh: AbstractMesh
) -> str | None:
  """Returns a sharding that no kernel supports, or None."""
  batch, length, num_heads, _ = heads.query.shape
  if num_devices(mesh, axes.head_dim) > 1:
    return f'{axes.head_dim} over the head dimension'
  if batch % num_devices(mesh, axes.batch):
    return f'{axes.batch} over a batch of {batch}'
  if length % num_devices(mesh, axes.length):
    return f'{axes.length} over a length of {length}'
  shards, num_kv_heads = num_devices(mesh, axes.heads), heads.num_kv_heads
  # Shards may share a head.
  if num_heads % shards or (num_kv_heads % shards and shards % num_kv_heads):
    return f'{axes.heads} over {num_heads} heads, {num_kv_heads} of keys'
  used_axes = (*axes.batch, *axes.length, *axes.heads)
  if _num_compiler_devices(mesh) > 1 and num_devices(mesh, used_axes) == 1:
    # All devices would compute the same; einsum is sharded as its operands.
    return f'a mesh {dict(mesh.shape)} that shards no dimension of the queries'
  return None


def _num_compiler_devices(mesh: AbstractMesh) -> int:
  """Returns the number of devices along the axes outside of a shard_map."""
  axes = zip(mesh.axis_names, mesh.axis_types, strict=True)
  manual = jax.sharding.AxisType.Manual
  return num_devices(mesh, tuple(name for name, t in axes if t != manual))


def is_local(mesh: AbstractMesh) -> bool:
  """Whether the arrays are those of one device: no mesh, or a shard_map."""
  return all(t == jax.sharding.AxisType.Manual for t in mesh.axis_types)


def map_over_heads(
  attend: Callable[..., Float[Array, 'B T N H']],
  heads: Heads,
  spec: KernelSpec,
) -> Float[Array, 'B T N H']:
  """Returns `attend` applied to the examples and heads of each device.

  Args:
    attend: takes queries, keys and values with an axis of heads, segment ids,
      and the extra logit of each head.
    heads: whose lengths are not sharded.
    spec: of the attention.
  """
  ids, sinks = spec.mask.segment_ids, spec.sinks(heads.query.shape[2])
  mesh = jax.sharding.get_abstract_mesh()
  if is_local(mesh):
    return attend(*heads.with_head_axis(), ids, sinks)
  axes = HeadAxes.of(spec.split, mesh)
  heads = heads.for_shards(num_devices(mesh, axes.heads))
  query_spec = axes.query_spec()
  key_spec = axes.key_spec(heads.num_kv_heads)
  ids_spec = PartitionSpec(*query_spec[:1])
  in_specs = (query_spec, key_spec, key_spec, ids_spec, axes.sinks_spec())
  return shard_map(attend, in_specs, query_spec)(*heads, ids, sinks)


def shard_map(
  fn: Callable[..., Float[Array, 'B T N H']],
  in_specs: tuple[Any, ...],
  out_specs: PartitionSpec,
) -> Callable[..., Float[Array, 'B T N H']]:
  """Returns `fn` applied to the shards of each device.

  Args:
    fn: of operands.
    in_specs: of the operands, which axes of type Explicit may shard otherwise.
    out_specs: of the result.
  """
  mapped = jax.shard_map(
    fn, in_specs=in_specs, out_specs=out_specs, check_vma=False
  )

  def run(*operands: Any) -> Float[Array, 'B T N H']:
    mesh = jax.sharding.get_abstract_mesh()
    if jax.sharding.AxisType.Explicit in mesh.axis_types:
      operands = jax.tree.map(
        lambda spec, x: jax.sharding.reshard(x, spec), in_specs, operands
      )
    return mapped(*operands)

  return run
