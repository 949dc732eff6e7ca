# SPDX-License-Identifier: Apache-2.0
"""Attention by praxis.kernels.attention: C++ on CPUs, Triton on NVIDIA GPUs.

Neither logits nor masks are in memory; blocks that the mask hides are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.sharding import AbstractMesh
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from praxis.kernels import attention
from praxis.layers.attentions import kernel_inputs, masks
from praxis.layers.attentions.kernel_inputs import Heads, KernelSpec


def reason_against(
  heads: Heads,
  spec: KernelSpec,
  mesh: AbstractMesh,
  dtypes: Sequence[DTypeLike],
) -> str | None:
  """Returns a property that neither kernel supports, or None.

  Args:
    heads: arrays, or their shapes.
    spec: of the attention.
    mesh: over which the arrays are sharded; empty for one device.
    dtypes: that the kernel supports.
  """
  names = {x.dtype for x in heads}
  if len(names) > 1 or heads.query.dtype not in dtypes:
    return ' and '.join(sorted(str(d) for d in names))
  axes = kernel_inputs.HeadAxes.of(spec.split, mesh)
  if kernel_inputs.num_devices(mesh, axes.length) > 1:
    return f'{axes.length} over the sequence'
  return kernel_inputs.reason_against(heads, spec, mesh)


def attend(heads: Heads, spec: KernelSpec) -> Float[Array, 'B T N H']:
  """Returns the attended values, sharded as the queries.

  Args:
    heads: scaled queries, keys and values, which the kernel supports.
    spec: of the attention.
  """
  kernel_spec = _kernel_spec(spec)

  def local(
    query: Array, key: Array, value: Array, ids: Array, sinks: Array | None
  ) -> Float[Array, 'B T N H']:
    return attention.attention(query, key, value, ids, kernel_spec, sinks)

  return kernel_inputs.map_over_heads(local, heads, spec)


def _kernel_spec(spec: KernelSpec) -> attention.Spec:
  window = spec.window or masks.ContextWindow(None, None)
  return attention.Spec(
    # The left side of a window has the query's own position.
    before=None if window.left is None else window.left - 1,
    after=0 if spec.mask.is_causal else window.right,
    soft_cap=spec.soft_cap or 0.0,
  )
