# SPDX-License-Identifier: Apache-2.0
"""Rings of devices within a mesh: what lies where around `ring.attend`.

Shapes: B batch, T queries, S keys and values, N heads of queries, K of keys and
values with N = K · G, H head; all of the whole sequence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from praxis import base_layer
from praxis.layers import sharding
from praxis.layers.context_parallel import block_attention, zigzag
from praxis.layers.context_parallel import ring as ring_lib
from praxis.layers.context_parallel.visibility import Sight
from praxis.pytypes import SplitDimsMapping

_Heads = Float[Array, 'B T N H']
_SourceHeads = Float[Array, 'B S K H']
_AxesOfDim = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread:
  """How attention is spread over a mesh."""

  # The mesh axis that splits sequences.
  axis: str
  # How queries are split, [B, T, N, H].
  split: SplitDimsMapping
  mesh_axis_names: Sequence[str] | None
  logits: block_attention.Logits
  # Whether devices have the same work where later positions are hidden.
  balanced: bool = False


def num_parts(axis: str) -> int:
  """Returns into how many parts the mesh at hand splits sequences."""
  return dict(jax.sharding.get_abstract_mesh().shape).get(axis, 1)


def attend(
  query: _Heads,
  key: _SourceHeads,
  value: _SourceHeads,
  spread: Spread,
  *,
  mask: Float[Array, '#B 1 #T S'] | None = None,
  first: Int[Array, '#B T'] | None = None,
) -> _Heads:
  """Returns the attended values; keys and values go around.

  Args:
    query: scaled.
    key: as many as values.
    value: what is averaged.
    spread: over which devices.
    mask: additive; or else
    first: index of the first key that each query sees, of those up to its own.

  Raises:
    ValueError: the sequence does not fit the devices.
  """
  size = num_parts(spread.axis)
  _check_length('queries', query.shape[1], size, spread.balanced)
  _check_length('keys', key.shape[1], size, spread.balanced)
  ring = ring_lib.Ring(
    axis=spread.axis, size=size, logits=spread.logits, balanced=spread.balanced
  )
  batch, heads = _axes(spread, query)
  key, value = _with_heads_for(heads, key, value)
  if key.shape[2] % sharding.num_devices_along(heads):
    heads = ()
  rows = PartitionSpec(batch, spread.axis, heads or None, None)
  visible = first if mask is None else mask[:, 0]

  def of_device(query: Array, key: Array, value: Array, seen: Array) -> Array:
    return _of_device(ring, query, key, value, seen, has_mask=mask is not None)

  encoded = jax.shard_map(
    of_device,
    in_specs=(rows, rows, rows, _spec_of(visible, batch, spread.axis)),
    out_specs=rows,
    check_vma=False,
  )(query, key, value, visible)
  return encoded.astype(value.dtype)


def _of_device(
  ring: ring_lib.Ring,
  query: Array,
  key: Array,
  value: Array,
  seen: Array,
  *,
  has_mask: bool,
) -> Float[Array, 'B T N H']:
  """Returns the attended values of one device's queries."""
  length = query.shape[1]
  index = ring_lib.indices(ring, jax.lax.axis_index(ring.axis), length)
  first = None if has_mask else seen
  if ring.balanced:
    query, key, value, first = (
      zigzag.scatter(x, ring.axis, ring.size)
      for x in (query, key, value, first)
    )
  sight = Sight(index=index, first=first, mask=seen if has_mask else None)
  batch, _, heads, width = query.shape
  grouped = query.reshape(batch, length, key.shape[2], -1, width)
  encoded = ring_lib.attend(ring, grouped, key, value, sight)
  encoded = encoded.reshape(batch, length, heads, -1)
  if ring.balanced:
    encoded = zigzag.gather(encoded, ring.axis, ring.size)
  return encoded


def _axes(spread: Spread, query: _Heads) -> tuple[_AxesOfDim, _AxesOfDim]:
  """Returns the mesh axes that split batch and heads, where they divide."""
  split = spread.split
  if split is None or not spread.mesh_axis_names:
    return (), ()
  spec = base_layer.to_partition_spec(split, spread.mesh_axis_names)
  spec = base_layer.maybe_transpose_mesh_axes(spec)
  sizes = query.shape[0], query.shape[2]
  return tuple(
    sharding.dividing_axes(entry, size)
    for entry, size in zip((spec[0], spec[2]), sizes, strict=True)
  )


def _with_heads_for(
  axes: _AxesOfDim, key: _SourceHeads, value: _SourceHeads
) -> tuple[Float[Array, 'B S R H'], Float[Array, 'B S R H']]:
  """Returns keys and values, repeated where there are fewer than devices."""
  parts, heads = sharding.num_devices_along(axes), key.shape[2]
  if parts % heads or parts == heads:
    return key, value
  key, value = (jnp.repeat(x, parts // heads, axis=2) for x in (key, value))
  return key, value


def _spec_of(x: Array, batch: _AxesOfDim, axis: str) -> PartitionSpec:
  """Returns the spec of [#B, #T, ...]; an axis of length 1 is not split."""
  return PartitionSpec(
    batch if x.shape[0] > 1 else None, axis if x.shape[1] > 1 else None
  )


def _check_length(name: str, length: int, size: int, balanced: bool) -> None:
  parts = 2 * size if balanced else size
  if length % parts:
    raise ValueError(
      f'the number of {name} must be a multiple of {parts} on a ring of {size} '
      f'devices, got {length}; change MAX_SEQ_LEN or the mesh'
    )
