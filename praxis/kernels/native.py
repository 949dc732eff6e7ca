# SPDX-License-Identifier: Apache-2.0
"""Loading of the C++ extension and registration of its kernels with XLA."""

# bazel: deps=//praxis/kernels:_native
from __future__ import annotations

import functools
import importlib
import types

import jax
from absl import logging

_EXTENSION = 'praxis.kernels._native'


def has_kernel(platform: str, name: str) -> bool:
  """Whether kernel `name` exists for 'cpu' or 'CUDA'; registers all kernels."""
  return f'{platform}:{name}' in _registered()


def cpu_isa() -> str | None:
  """Returns the instruction set of the CPU kernels (csrc/kernels/tiles.h)."""
  extension = _load()
  return extension.cpu_isa() if extension else None


@functools.cache
def _registered() -> frozenset[str]:
  extension = _load()
  if extension is None:
    return frozenset()
  handlers = extension.registrations()
  for key, handler in handlers.items():
    platform, name = key.split(':')
    jax.ffi.register_ffi_target(name, handler, platform=platform)
  return frozenset(handlers)


@functools.cache
def _load() -> types.ModuleType | None:
  try:
    return importlib.import_module(_EXTENSION)
  except ModuleNotFoundError as error:
    if error.name != _EXTENSION:
      raise
    logging.info('%s is not built: its kernels run as jnp.', _EXTENSION)
    return None
