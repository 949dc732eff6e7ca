# SPDX-License-Identifier: Apache-2.0
"""The flash attention kernel of csrc for CPUs.

Neither logits nor masks are in memory; blocks that the mask hides are skipped.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax.sharding import AbstractMesh

from praxis.kernels import attention
from praxis.kernels import native as kernels
from praxis.layers.attentions import flash
from praxis.layers.attentions.kernel_inputs import Heads, KernelSpec

# Where the kernel measures at least 1.2 times as fast as einsum by XLA
# (benchmarks/attention.py).
_FAST_ISAS = ('avx2', 'avx512')
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
  dtypes = (jnp.float32, jnp.bfloat16)
  return flash.reason_against(heads, spec, mesh, dtypes)


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
