# SPDX-License-Identifier: Apache-2.0
"""The flash attention kernel of praxis.kernels for NVIDIA GPUs, by Triton.

It takes what cuDNN's attention does not: packed rows and caps of the logits.
"""

from __future__ import annotations

import importlib.util

import jax.numpy as jnp
from jax.sharding import AbstractMesh

from praxis import py_utils
from praxis.layers.attentions import cudnn, flash
from praxis.layers.attentions.kernel_inputs import Heads, KernelSpec

_DTYPES = (jnp.bfloat16, jnp.float16)
_MAX_HEAD_DIM = 256
# JAX 0.12 deprecates it.
_BACKEND = 'jax.experimental.pallas.triton'
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
  if reason := cudnn.reason_against_process():
    return reason
  if importlib.util.find_spec(_BACKEND) is None:
    return f'a version of JAX without {_BACKEND}'
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
