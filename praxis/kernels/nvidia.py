# SPDX-License-Identifier: Apache-2.0
"""Whether this process compiles fused kernels for NVIDIA GPUs."""

from __future__ import annotations

import importlib.util

import jax

_PLUGINS = ('jax_cuda13_plugin', 'jax_cuda12_plugin')
# JAX 0.12 deprecates it.
_TRITON = 'jax.experimental.pallas.triton'
# That of an A100; older GPUs have no bfloat16.
_MIN_CAPABILITY = (8, 0)


def reason_against_process() -> str | None:
  """Returns why this process or its GPU has no fused kernels, or None."""
  if not any(map(importlib.util.find_spec, _PLUGINS)):
    return "a process without JAX's CUDA plugin"
  capability = compute_capability()
  if capability < _MIN_CAPABILITY:
    return 'a compute capability of {}.{}'.format(*capability)
  return None


def reason_against_triton() -> str | None:
  """Returns why this process has no kernels of Pallas for Triton, or None."""
  if reason := reason_against_process():
    return reason
  if importlib.util.find_spec(_TRITON) is None:
    return f'a version of JAX without {_TRITON}'
  return None


def compute_capability() -> tuple[int, ...]:
  """Returns that of this process' GPU; of an A100 if it compiles for others."""
  if jax.default_backend() != 'gpu':
    return _MIN_CAPABILITY
  return tuple(map(int, jax.local_devices()[0].compute_capability.split('.')))
