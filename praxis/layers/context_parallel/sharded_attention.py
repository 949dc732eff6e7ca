# SPDX-License-Identifier: Apache-2.0
"""Ring attention of global arrays: the shard_map around `ring.attend`.

Shapes: B batch, T queries, S keys and values, N heads of queries, K of keys and
values with N = K · G, H head dimension; all of the whole sequence.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from praxis import base_layer, py_utils
from praxis.layers import sharding
from praxis.layers.attentions import masks
from praxis.layers.context_parallel import block_attention, zigzag
from praxis.layers.context_parallel import ring as ring_lib
from praxis.layers.context_parallel.visibility import KeyVisibility
from praxis.pytypes import SplitDimsMapping

_Heads = Float[Array, 'B T N H']
_KeyHeads = Float[Array, 'B S K H']
_MeshAxes = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RingConfig:
  """The mesh axes and options of a ring attention."""

  # The mesh axis that shards sequences.
  axis: str
  # Sharding of queries [B, T, N, H].
  query_split: SplitDimsMapping
  mesh_axis_names: Sequence[str] | None
  transform: block_attention.LogitTransform
  # Whether sequences are in zigzag order inside the ring; needs a causal mask.
  balanced: bool = False


def num_shards(axis: str) -> int:
  """Returns the size of an axis of the current mesh, 1 if it has none."""
  return dict(jax.sharding.get_abstract_mesh().shape).get(axis, 1)


def attend(
  query: _Heads,
  key: _KeyHeads,
  value: _KeyHeads,
  visibility: Float[Array, '#B 1 #T S'] | Int[Array, '#B T'],
  config: RingConfig,
) -> _Heads:
  """Returns the attended values.

  Args:
    query: scaled.
    key: keys.
    value: values, as many as keys.
    visibility: an additive mask, or the index of the first visible key of each
      query, which sees the keys from there up to its own index.
    config: the ring.
  """
  size, length = num_shards(config.axis), query.shape[1]
  divisor = 2 * size if config.balanced else size
  # The prompts of a decoding have any length. Padded keys are not visible.
  visibility = _pad_visibility(visibility, divisor)
  query, key, value = (
    py_utils.pad_to_multiple(x, 1, divisor) for x in (query, key, value)
  )
  ring = ring_lib.Ring(
    axis=config.axis,
    size=size,
    transform=config.transform,
    balanced=config.balanced,
  )
  batch_axes, head_axes = _batch_and_head_axes(config, query)
  key, value = _repeat_heads(head_axes, key, value)
  if key.shape[2] % sharding.num_devices_along(head_axes):
    head_axes = ()
  heads_spec = PartitionSpec(batch_axes, config.axis, head_axes or None, None)
  if visibility.ndim == 4:
    visibility = visibility[:, 0]

  # An operand: of all that does not depend on a loop, JAX makes a shard_map
  # before the loop, and XLA fails if its only operands are empty constants.
  index = jnp.arange(query.shape[1])[jnp.newaxis]

  encoded = jax.shard_map(
    functools.partial(_attend_on_device, ring),
    in_specs=(
      heads_spec,
      heads_spec,
      heads_spec,
      _row_spec(visibility, batch_axes, config.axis),
      PartitionSpec(None, config.axis),
    ),
    out_specs=heads_spec,
    check_vma=False,
  )(query, key, value, visibility, index)
  return encoded[:, :length].astype(value.dtype)


def _attend_on_device(
  ring: ring_lib.Ring,
  query: Array,
  key: Array,
  value: Array,
  visibility: Array,
  index: Int[Array, '1 T'],
) -> Float[Array, 'B T N H']:
  """Returns the attended values of one device's queries.

  `visibility` is the mask [B, T, S], or the first visible key of each query
  [B, T]; `index` are the indices of the queries in the sequence.
  """
  if ring.balanced:  # There is no mask, see `ContextParallel`.
    query, key, value, visibility, index = (
      zigzag.to_zigzag(x, ring.axis, ring.size)
      for x in (query, key, value, visibility, index)
    )
  visible_keys = (
    KeyVisibility(index[0], mask=visibility)
    if visibility.ndim == 3
    else KeyVisibility(index[0], visibility)
  )
  batch, length, heads, head_dim = query.shape
  grouped = query.reshape(batch, length, key.shape[2], -1, head_dim)
  encoded = ring_lib.attend(ring, grouped, key, value, visible_keys)
  encoded = encoded.reshape(batch, length, heads, -1)
  if ring.balanced:
    encoded = zigzag.from_zigzag(encoded, ring.axis, ring.size)
  return encoded


def _batch_and_head_axes(
  config: RingConfig, query: _Heads
) -> tuple[_MeshAxes, _MeshAxes]:
  """Returns the mesh axes that shard batch and heads, where they divide."""
  split = config.query_split
  if split is None or not config.mesh_axis_names:
    return (), ()
  spec = base_layer.to_partition_spec(split, config.mesh_axis_names)
  spec = base_layer.maybe_transpose_mesh_axes(spec)
  batch, heads = query.shape[0], query.shape[2]
  return (
    sharding.dividing_axes(spec[0], batch),
    sharding.dividing_axes(spec[2], heads),
  )


def _repeat_heads(
  axes: _MeshAxes, key: _KeyHeads, value: _KeyHeads
) -> tuple[Float[Array, 'B S R H'], Float[Array, 'B S R H']]:
  """Returns keys and values with heads repeated if devices outnumber them."""
  devices, heads = sharding.num_devices_along(axes), key.shape[2]
  if devices % heads or devices == heads:
    return key, value
  key, value = (jnp.repeat(x, devices // heads, axis=2) for x in (key, value))
  return key, value


def _row_spec(x: Array, batch: _MeshAxes, axis: str) -> PartitionSpec:
  """Returns the spec of [#B, #T, ...]; axes of length 1 are replicated."""
  return PartitionSpec(
    batch if x.shape[0] > 1 else None, axis if x.shape[1] > 1 else None
  )


def _pad_visibility(visibility: Array, divisor: int) -> Array:
  """Pads the queries and keys of a mask, or the first keys of queries.

  Padded keys are masked. Without a mask they are later than all queries.
  """
  pad = functools.partial(py_utils.pad_to_multiple, multiple=divisor)
  if visibility.ndim == 2:
    return pad(visibility, 1)
  masked = masks.large_negative(visibility.dtype)
  visibility = pad(visibility, 3, pad_val=masked)
  is_broadcast = visibility.shape[2] == 1
  return visibility if is_broadcast else pad(visibility, 2)
