# SPDX-License-Identifier: Apache-2.0
"""Splash attention: the flash attention kernel of JAX for TPUs.

Neither logits nor masks are in memory; blocks that the mask hides are skipped.
If mesh axes shard the sequence, each device attends from its queries to all
keys, which are all-gathered. On CPUs the kernel is interpreted, for tests.

References: FlashAttention-2, arXiv:2307.08691;
jax.experimental.pallas.ops.tpu.splash_attention.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from praxis import lazy_loader, py_utils
from praxis.layers.attentions import kernel_inputs
from praxis.layers.attentions.kernel_inputs import Heads, KernelSpec

# Lazy: it imports the compiler of TPU kernels.
library = lazy_loader.LazyLoader(
  'library', globals(), 'jax.experimental.pallas.ops.tpu.splash_attention'
)

# The compiler of TPU kernels loads no float16.
_DTYPES = (jnp.float32, jnp.bfloat16)
# Queries and keys of a block; the largest that divides the sequence is taken.
_BLOCKS = (512, 256, 128)
_MIN_BLOCK = _BLOCKS[-1]
# Sequences from this length are padded to blocks, by a quarter at most.
_MIN_PADDED_LENGTH = 512
# The head dimension is padded to a multiple, if it is not less.
_HEAD_DIM = 64
# Segment of that padding; ids of segments are not negative.
_PADDING_ID = -1
# Name of the saved results (jax.ad_checkpoint.checkpoint_name).
RESIDUALS = 'context'

# The SplashAttentionKernel of the library.
_Kernel = Any

_BLOCK_FIELDS = (
  *('block_q', 'block_kv', 'block_kv_compute', 'block_q_dkv', 'block_kv_dkv'),
  *('block_kv_dkv_compute', 'block_q_dq', 'block_kv_dq'),
)


def reason_against(
  heads: Heads, spec: KernelSpec, mesh: AbstractMesh
) -> str | None:
  """Returns a property that the kernel does not support, or None.

  Args:
    heads: arrays, or their shapes.
    spec: of the attention.
    mesh: over which the arrays are sharded; empty for one device.
  """
  if reason := heads.empty_reason():
    return reason
  if dtypes := {str(x.dtype) for x in heads if x.dtype not in _DTYPES}:
    return ' and '.join(sorted(dtypes))
  _, length, _, head_dim = heads.query.shape
  if head_dim < _HEAD_DIM:
    return f'a head dimension of {head_dim}, less than {_HEAD_DIM}'
  if reason := kernel_inputs.reason_against(heads, spec, mesh):
    return reason
  axes = kernel_inputs.HeadAxes.of(spec.split, mesh)
  shards = kernel_inputs.num_devices(mesh, axes.length)
  if length % (shards * _MIN_BLOCK) and (
    shards > 1 or length < _MIN_PADDED_LENGTH
  ):
    return (
      f'a length of {length // shards}, not a multiple of {_MIN_BLOCK} and '
      f'less than {_MIN_PADDED_LENGTH} or sharded'
    )
  return None


def attend(heads: Heads, spec: KernelSpec) -> Float[Array, 'B T N H']:
  """Returns the attended values, sharded as the queries.

  Args:
    heads: scaled queries, keys and values, which `reason_against` accepts.
    spec: of the attention.
  """
  length, value_dim = heads.query.shape[1], heads.value.shape[-1]
  pad = py_utils.pad_to_multiple
  padded_heads = Heads(
    *(pad(pad(x, 1, _MIN_BLOCK), 3, _HEAD_DIM) for x in heads.with_head_axis())
  )
  ids = pad(spec.mask.segment_ids, 1, _MIN_BLOCK, _PADDING_ID)
  return _attend_blocks(padded_heads, ids, spec)[:, :length, :, :value_dim]


def _attend_blocks(
  heads: Heads, segment_ids: Int[Array, 'B T'], spec: KernelSpec
) -> Float[Array, 'B T N H']:
  """Attends with a length that is a multiple of the blocks."""
  mesh = jax.sharding.get_abstract_mesh()
  length, num_heads = heads.query.shape[1:3]
  sinks = spec.sinks(num_heads)
  if kernel_inputs.is_local(mesh):
    kernel = _kernel(length, num_heads, spec)
    return _attend_locally(kernel, heads, segment_ids, segment_ids, sinks)
  axes = kernel_inputs.HeadAxes.of(spec.split, mesh)
  shards = kernel_inputs.num_devices(mesh, axes.heads)
  heads = heads.for_shards(shards)
  length_shards = kernel_inputs.num_devices(mesh, axes.length)
  kernel = _kernel(length, num_heads // shards, spec, length_shards)
  # The blocks that the mask shows are data of the kernel, by rows of queries.
  blocks_spec = PartitionSpec(None, axes.length or None)
  blocks_sharding = NamedSharding(
    AbstractMesh(mesh.axis_sizes, mesh.axis_names), blocks_spec
  )
  query_spec = axes.query_spec()
  key_spec = axes.key_spec(heads.num_kv_heads)
  in_specs = (
    kernel.manual_sharding_spec(blocks_sharding),
    (query_spec, key_spec, key_spec),
    *(PartitionSpec(*query_spec[:2]), PartitionSpec(*key_spec[:1])),
    axes.sinks_spec(),
  )
  operands = (kernel, tuple(heads), segment_ids, segment_ids, sinks)
  return kernel_inputs.shard_map(_attend_locally, in_specs, query_spec)(
    *operands
  )


def _attend_locally(
  kernel: _Kernel,
  heads: tuple[Array, ...],
  query_segment_ids: Int[Array, 'B T'],
  key_segment_ids: Int[Array, 'B S'],
  sinks: Float[Array, ' N'] | None,
) -> Float[Array, 'B T N H']:
  by_head = (jnp.swapaxes(x, 1, 2) for x in heads)
  ids = library.SegmentIds(query_segment_ids, key_segment_ids)
  if sinks is not None:
    batched = jnp.broadcast_to(sinks, (heads[0].shape[0], *sinks.shape))
    sinks = _with_gradients_as_stored(batched)
  return jnp.swapaxes(jax.vmap(kernel)(*by_head, ids, sinks), 1, 2)


@jax.custom_vjp
def _with_gradients_as_stored(sinks: Float[Array, 'B N']) -> Array:
  """Returns the sinks; the library's gradients have the dtype of the values."""
  return sinks


_with_gradients_as_stored.defvjp(
  lambda sinks: (sinks, None), lambda _, dsinks: (dsinks.astype(jnp.float32),)
)


def _kernel(
  length: int, num_heads: int, spec: KernelSpec, length_shards: int = 1
) -> _Kernel:
  """Returns the kernel of one example: of heads, segment ids and sinks."""
  shape = (length, length)
  is_causal = spec.mask.is_causal
  mask = (library.CausalMask if is_causal else library.FullMask)(shape)
  if window := spec.window:
    # The left side of a window has the query's own position.
    left = None if window.left is None else window.left - 1
    mask &= library.LocalMask(shape, (left, window.right), 0)
  block = next(b for b in _BLOCKS if length // length_shards % b == 0)
  return library.make_splash_mha(
    library.MultiHeadMask([mask] * num_heads),
    head_shards=1,
    q_seq_shards=length_shards,
    block_sizes=library.BlockSizes(**dict.fromkeys(_BLOCK_FIELDS, block)),
    attn_logits_soft_cap=spec.soft_cap,
    residual_checkpoint_name=RESIDUALS,
    interpret=py_utils.target_platform() != 'tpu',
  )
