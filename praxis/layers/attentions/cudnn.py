# SPDX-License-Identifier: Apache-2.0
"""cuDNN's flash attention for NVIDIA GPUs, through jax.nn.

Neither logits nor masks are in memory: padding is given by lengths. XLA's
implementation of the same call runs on CPUs, for tests.

jax.nn.dot_product_attention has no offsets of packed segments. JAX's internal
function has them, but reserves statistics for a fixed number of segments per
row, ignores further ones, and offsets fewer heads of keys wrongly (0.10.2).

References: FlashAttention-2, arXiv:2307.08691;
https://docs.nvidia.com/deeplearning/cudnn.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jaxtyping import Array, Float, Int

from praxis import py_utils
from praxis.kernels import nvidia
from praxis.layers.attentions import kernel_inputs
from praxis.layers.attentions.kernel_inputs import Heads, KernelSpec

_DTYPES = (jnp.bfloat16, jnp.float16)
# Largest head dimension, by compute capability; cuDNN needs at least the last.
_HEAD_DIMS = {(9, 0): 256, (8, 0): 128}


def reason_against(
  heads: Heads, spec: KernelSpec, mesh: AbstractMesh
) -> str | None:
  """Returns a property that the kernel does not support, or None.

  Args:
    heads: arrays, or their shapes.
    spec: of the attention.
    mesh: over which the arrays are sharded; empty for one device.
  """
  dtypes = {x.dtype for x in heads}
  if len(dtypes) > 1 or heads.query.dtype not in _DTYPES:
    return ' and '.join(sorted(str(d) for d in dtypes))
  if spec.mask.is_packed:
    return 'packed rows'
  if spec.extra_logit is not None:
    return 'attention_extra_logit or use_attention_sinks'
  if spec.soft_cap:
    return f'a cap of the logits, {spec.logit_cap}'
  if spec.window and not spec.mask.is_causal:
    return 'a window without a causal mask'
  head_dim = heads.query.shape[-1]
  if head_dim % 8:
    return f'a head dimension of {head_dim}, not a multiple of 8'
  axes = kernel_inputs.HeadAxes.of(spec.split, mesh)
  if kernel_inputs.num_devices(mesh, axes.length) > 1:
    return f'{axes.length} over the sequence'
  if reason := kernel_inputs.reason_against(heads, spec, mesh):
    return reason
  if py_utils.target_platform() == 'gpu':
    return _device_reason(head_dim)
  return None


def attend(heads: Heads, spec: KernelSpec) -> Float[Array, 'B T N H']:
  """Returns the attended values, sharded as the queries; 0 for padding.

  A row with padding before tokens gives NaN.

  Args:
    heads: scaled queries, keys and values, which `reason_against` accepts.
    spec: of the attention.
  """
  local = functools.partial(_attend_locally, spec=spec)
  return kernel_inputs.map_over_heads(local, heads, spec)


def _attend_locally(
  query: Float[Array, 'B T N H'],
  key: Float[Array, 'B T K H'],
  value: Float[Array, 'B T K H'],
  segment_ids: Int[Array, 'B T'],
  sinks: None,
  spec: KernelSpec,
) -> Float[Array, 'B T N H']:
  del sinks
  is_token = segment_ids > 0
  length = jnp.sum(is_token, axis=1, dtype=jnp.int32)
  is_prefix = is_token == (jnp.arange(query.shape[1]) < length[:, jnp.newaxis])
  # Fused with the scale of the queries.
  is_valid = jnp.all(is_prefix, axis=1)[
    :, jnp.newaxis, jnp.newaxis, jnp.newaxis
  ]
  query = jnp.where(is_valid, query, jnp.nan)
  # A row of padding only has no key to attend to.
  lengths = jnp.maximum(length, 1)
  is_gpu = py_utils.target_platform() == 'gpu'
  # JAX refuses to differentiate odd lengths (0.10.2).
  padded = (py_utils.pad_to_multiple(x, 1, 2) for x in (query, key, value))
  encoded = jax.nn.dot_product_attention(
    *padded,
    scale=1.0,
    is_causal=spec.mask.is_causal,
    query_seq_lengths=lengths,
    key_value_seq_lengths=lengths,
    local_window_size=_keys_before_and_after(spec),
    implementation='cudnn' if is_gpu else 'xla',
  )
  return encoded[:, : query.shape[1]]


def _keys_before_and_after(spec: KernelSpec) -> tuple[int, int] | None:
  """Returns the window of a causal mask, without the query's own position."""
  if spec.window is None or spec.window.left is None:
    return None
  return spec.window.left - 1, 0


def _device_reason(head_dim: int) -> str | None:
  """Returns what JAX or the GPU does not support, or None."""
  if reason := nvidia.reason_against_process():
    return reason
  capability = nvidia.compute_capability()
  limit = max(size for at, size in _HEAD_DIMS.items() if capability >= at)
  if head_dim > limit:
    return f'a head dimension of {head_dim}, more than {limit}'
  return None
