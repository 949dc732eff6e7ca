# SPDX-License-Identifier: Apache-2.0
"""Splash attention: the flash attention kernel of JAX for TPUs.

Neither logits nor masks are in memory; blocks that the mask hides are skipped.
On CPUs the kernel is interpreted, for tests.

References: FlashAttention-2, arXiv:2307.08691;
jax.experimental.pallas.ops.tpu.splash_attention.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention as library
from jax.sharding import AbstractMesh, AxisType, PartitionSpec
from jaxtyping import Array, Float, Int

from praxis import py_utils, pytypes
from praxis.layers.attentions import masks

# Queries and keys of a block; the largest that divides the sequence is taken.
_BLOCKS = (512, 256, 128)
# Name of the saved results (jax.ad_checkpoint.checkpoint_name).
RESIDUALS = 'context'


_BLOCK_FIELDS = (
  *('block_q', 'block_kv', 'block_kv_compute', 'block_q_dkv', 'block_kv_dkv'),
  *('block_kv_dkv_compute', 'block_q_dq', 'block_kv_dq'),
)


class Heads(NamedTuple):
  """Queries, keys and values; keys of one head may have no head axis."""

  query: Float[Array, 'B T N H']
  key: Float[Array, 'B T *K H']
  value: Float[Array, 'B T *K H']


@dataclasses.dataclass(frozen=True)
class Spec:
  """What positions see, besides their segment, and the cap of the logits."""

  # Whether later positions are hidden.
  is_causal: bool
  # Hides positions further away; None for no limit.
  window: masks.ContextWindow | None = None
  # cap * tanh(logits / cap); None or 0 disables it.
  logit_cap: float | None = None


def reason_against(
  heads: Heads, split: pytypes.SplitDimsMapping, mesh: AbstractMesh
) -> str | None:
  """Returns a shape or sharding that the kernel does not support, or None.

  Args:
    heads: arrays, or their shapes.
    split: mesh axes of the dimensions of the queries.
    mesh: over which the arrays are sharded; empty for one device.
  """
  query, key, _ = heads
  _, length, num_heads, head_dim = query.shape
  num_kv_heads = key.shape[2] if len(key.shape) == 4 else 1
  if key.shape[1] != length:
    return f'queries {query.shape} with keys {key.shape} of another length'
  if length % _BLOCKS[-1]:
    return f'a length of {length}, not a multiple of {_BLOCKS[-1]}'
  if head_dim % 64:
    return f'a head dimension of {head_dim}, not a multiple of 64'
  batch_axes, length_axes, head_axes, dim_axes = _axes(split, mesh)
  if _size(mesh, (*length_axes, *dim_axes)) > 1:
    return f'{length_axes or dim_axes} over sequence or head dimension'
  if query.shape[0] % _size(mesh, batch_axes):
    return f'{batch_axes} over a batch of {query.shape[0]}'
  shards = _size(mesh, head_axes)
  if num_heads % shards or (num_kv_heads % shards and num_kv_heads > 1):
    return f'{head_axes} over {num_heads} heads, {num_kv_heads} of keys'
  return None


def attend(
  heads: Heads,
  segment_ids: Int[Array, 'B T'],
  spec: Spec,
  split: pytypes.SplitDimsMapping,
) -> Float[Array, 'B T N H']:
  """Returns the attended values, sharded as the queries.

  Args:
    heads: scaled queries, keys and values, which `reason_against` accepts.
    segment_ids: positions attend to positions of their segment only.
    spec: limits of the mask, and the cap.
    split: mesh axes of the dimensions of the queries.
  """
  mesh = jax.sharding.get_abstract_mesh()
  local = functools.partial(_attend_locally, spec=spec)
  heads = _with_head_axis(heads)
  if all(t == AxisType.Manual for t in mesh.axis_types):
    return local(*heads, segment_ids)
  batch_axes, _, head_axes, _ = _axes(split, mesh)
  batch, by_head = batch_axes or None, head_axes or None
  query_spec = PartitionSpec(batch, None, by_head)
  key_spec = query_spec if heads.key.shape[2] > 1 else PartitionSpec(batch)
  return jax.shard_map(
    local,
    in_specs=(query_spec, key_spec, key_spec, PartitionSpec(batch)),
    out_specs=query_spec,
    check_vma=False,
  )(*heads, segment_ids)


def _with_head_axis(heads: Heads) -> Heads:
  query, key, value = heads
  if key.ndim == 3:
    key, value = key[:, :, jnp.newaxis], value[:, :, jnp.newaxis]
  return Heads(query, key, value)


def _attend_locally(
  query: Float[Array, 'B T N H'],
  key: Float[Array, 'B T K H'],
  value: Float[Array, 'B T K H'],
  segment_ids: Int[Array, 'B T'],
  spec: Spec,
) -> Float[Array, 'B T N H']:
  kernel = _kernel(*query.shape[1:3], spec)
  by_head = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))
  ids = library.SegmentIds(segment_ids, segment_ids)
  return jnp.swapaxes(jax.vmap(kernel)(*by_head, ids), 1, 2)


def _kernel(length: int, num_heads: int, spec: Spec) -> Any:
  """Returns the kernel of (query, key, value, segment ids) of one example."""
  shape = (length, length)
  mask = (library.CausalMask if spec.is_causal else library.FullMask)(shape)
  if window := spec.window:
    # The left side of a window has the query's own position.
    left = None if window.left is None else window.left - 1
    mask &= library.LocalMask(shape, (left, window.right), 0)
  block = next(b for b in _BLOCKS if length % b == 0)
  return library.make_splash_mha(
    library.MultiHeadMask([mask] * num_heads),
    head_shards=1,
    q_seq_shards=1,
    block_sizes=library.BlockSizes(**dict.fromkeys(_BLOCK_FIELDS, block)),
    attn_logits_soft_cap=spec.logit_cap or None,
    residual_checkpoint_name=RESIDUALS,
    interpret=py_utils.target_platform() != 'tpu',
  )


def _axes(
  split: pytypes.SplitDimsMapping, mesh: AbstractMesh
) -> list[tuple[str, ...]]:
  """Returns the mesh axes of batch, length, heads and head dimension."""
  dims = [None] * 4 if split is None else split
  names = ((d,) if isinstance(d, str) else d or () for d in dims)
  return [tuple(n for n in dim if n in mesh.axis_names) for dim in names]


def _size(mesh: AbstractMesh, axes: tuple[str, ...]) -> int:
  return math.prod(mesh.shape[axis] for axis in axes)
