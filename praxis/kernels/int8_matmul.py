# SPDX-License-Identifier: Apache-2.0
"""Matmul of few rows with a weight of int8, as in decoding.

XLA writes the weight as floats before it multiplies. The native kernel for CPUs
(csrc/kernels/int8_matmul.h) reads the int8 values once.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int8

from praxis import py_utils
from praxis.kernels import native

KERNEL = 'pax_int8_matmul'

# Where the kernel measures at least 1.2 times as fast as XLA
# (benchmarks/int8_matmul.py).
_MIN_WEIGHTS = 2**16
_MAX_ROWS = 4
# XLA's floats of such a weight exceed the caches.
_LARGE_WEIGHTS = 2**24
_MAX_ROWS_OF_LARGE = 16
_FAST_ISAS = ('avx512',)


def is_fast(x: Array, w: Array, rows: int) -> bool:
  """Whether the native kernel is faster than XLA, and can run.

  A program that is partitioned over several devices has no kernel: XLA
  partitions the product instead.

  Args:
    x: activations.
    w: weight.
    rows: number of rows of `x` as a matrix.
  """
  max_rows = _MAX_ROWS if w.size < _LARGE_WEIGHTS else _MAX_ROWS_OF_LARGE
  return (
    x.dtype in (jnp.float32, jnp.bfloat16)
    and w.dtype == jnp.int8
    and 0 < rows <= max_rows
    and w.size >= _MIN_WEIGHTS
    and jax.sharding.get_abstract_mesh().size <= 1
    and py_utils.target_platform() == 'cpu'
    and native.has_kernel('cpu', KERNEL)
    and native.cpu_isa() in _FAST_ISAS
  )


@jax.custom_jvp
def int8_matmul(
  x: Float[Array, 'M K'], w: Int8[Array, 'K N']
) -> Float[Array, 'M N']:
  """Returns x w in the dtype of x, with sums in float32.

  Differentiable in x.

  Args:
    x: activations, float32 or bfloat16.
    w: weight.
  """
  if not native.has_kernel('cpu', KERNEL):
    return reference(x, w)
  return jax.lax.platform_dependent(x, w, cpu=_native, default=reference)


@int8_matmul.defjvp
def _int8_matmul_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
  x, w = primals
  return int8_matmul(x, w), reference(tangents[0], w)


def reference(
  x: Float[Array, 'M K'], w: Int8[Array, 'K N']
) -> Float[Array, 'M N']:
  """Returns x w by XLA."""
  return jnp.einsum('mk,kn->mn', x, w)


def _native(
  x: Float[Array, 'M K'], w: Int8[Array, 'K N']
) -> Float[Array, 'M N']:
  shape = jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), x.dtype)
  return jax.ffi.ffi_call(KERNEL, shape, vmap_method='sequential')(x, w)
