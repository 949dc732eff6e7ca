# SPDX-License-Identifier: Apache-2.0
"""The flash attention kernel of csrc for CPUs.

Neither logits nor masks are in memory; blocks that the mask hides are skipped.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jaxtyping import Array, Float

from praxis.kernels import attention
from praxis.kernels import native as kernels
from praxis.layers.attentions import kernel_inputs, masks
from praxis.layers.attentions.kernel_inputs import Heads, KernelSpec

# Where the kernel measures at least 1.2 times as fast as einsum by XLA
# (benchmarks/attention.py).
_FAST_ISAS = ('avx2',)
_MIN_FAST_LENGTH = 128


def reason_against(
  heads: Heads, spec: KernelSpec, mesh: AbstractMesh
) -> str | None:
  """Returns a property that the kernel does not support, or None.

  Args:
    heads: arrays, or their shapes.
    spec: of the attention.
    mesh: over which the arrays are sharded; empty for one device.
  """
  if not attention.has_kernel():
    return 'a process without the extension praxis.kernels._native'
  dtypes = {x.dtype for x in heads}
  if len(dtypes) > 1 or heads.query.dtype not in (jnp.float32, jnp.bfloat16):
    return ' and '.join(sorted(str(d) for d in dtypes))
  if heads.key.shape[1] != heads.query.shape[1]:
    return (
      f'queries {heads.query.shape} with keys {heads.key.shape} of another '
      'length'
    )
  if spec.window and spec.window.left is not None and spec.window.left < 1:
    return "a window without the query's own position"
  axes = kernel_inputs.HeadAxes.of(spec.split, mesh)
  if kernel_inputs.num_devices(mesh, axes.length) > 1:
    return f'{axes.length} over the sequence'
  if mesh.size > 1 and not kernel_inputs.is_local(mesh):
    shards = kernel_inputs.num_devices(mesh, axes.batch + axes.heads)
    if shards == 1:
      return f'a mesh {dict(mesh.shape)} that shards neither batch nor heads'
  return kernel_inputs.sharding_reason(heads, axes, mesh)


def is_fast(length: int) -> bool:
  """Whether the kernel is measured to be faster with this CPU's instructions.

  Args:
    length: of the sequences.
  """
  return (
    attention.has_kernel()
    and kernels.cpu_isa() in _FAST_ISAS
    and length >= _MIN_FAST_LENGTH
  )


def attend(heads: Heads, spec: KernelSpec) -> Float[Array, 'B T N H']:
  """Returns the attended values, sharded as the queries.

  Args:
    heads: scaled queries, keys and values, which `reason_against` accepts.
    spec: of the attention.
  """
  local = functools.partial(attention.attention, spec=_kernel_spec(spec))
  return kernel_inputs.map_over_heads(local, heads, spec)


def _kernel_spec(spec: KernelSpec) -> attention.Spec:
  window = spec.window or masks.ContextWindow(None, None)
  return attention.Spec(
    # The left side of a window has the query's own position.
    before=None if window.left is None else window.left - 1,
    after=0 if spec.mask.is_causal else window.right,
    soft_cap=spec.soft_cap or 0.0,
  )
