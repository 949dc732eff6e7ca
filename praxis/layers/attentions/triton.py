# SPDX-License-Identifier: Apache-2.0
"""The flash attention kernel of praxis.kernels for NVIDIA GPUs, by Triton.

It takes what cuDNN's attention does not: packed rows and caps of the logits.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax.sharding import AbstractMesh

from praxis import py_utils
from praxis.kernels import nvidia
from praxis.layers.attentions import flash
from praxis.layers.attentions.kernel_inputs import Heads, KernelSpec

_DTYPES = (jnp.bfloat16, jnp.float16)
_MAX_HEAD_DIM = 256
# Not measured. Shorter rows have few logits, and blocks would be padding.
_MIN_FAST_LENGTH = 512


def reason_against(
  heads: Heads, spec: KernelSpec, mesh: AbstractMesh
) -> str | None:
  """Returns a property that the kernel does not support, or None.

  Args:
    heads: arrays, or their shapes.
    spec: of the attention.
    mesh: over which the arrays are sharded; empty for one device.
  """
  if (platform := py_utils.target_platform()) != 'gpu':
    return f'the platform {platform}'
  if reason := nvidia.reason_against_triton():
    return reason
  if reason := heads.empty_reason():
    return reason
  if (head_dim := heads.query.shape[-1]) > _MAX_HEAD_DIM:
    return f'a head dimension of {head_dim}, more than {_MAX_HEAD_DIM}'
  return flash.reason_against(heads, spec, mesh, _DTYPES)


def is_fast(length: int) -> bool:
  """Whether the kernel is expected to be faster than einsum.

  Args:
    length: of the sequences.
  """
  return length >= _MIN_FAST_LENGTH
