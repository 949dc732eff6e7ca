# SPDX-License-Identifier: Apache-2.0
"""Matmul of few rows with a weight of int8 or int4, as in decoding.

XLA writes the weight as floats before it multiplies. The native kernel for CPUs
(csrc/kernels/integer_matmul.h) reads the stored integers once.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from praxis import py_utils
from praxis.kernels import native

KERNEL = 'pax_integer_matmul'

# Where the kernel measures at least 1.2 times as fast as XLA
# (benchmarks/integer_matmul.py): up to so many rows, from so many weights on.
_MAX_ROWS = {
  jnp.dtype('float32'): ((32, 2**20),),
  jnp.dtype('bfloat16'): ((32, 2**20), (8, 2**16)),
}
_FAST_ISAS = ('avx512', 'avx2')
# The bits of an integer and the types of the elements that store them.
_FORMATS = {8: (jnp.int8,), 4: (jnp.int8, jnp.int32)}


def is_fast(
  x: Array, w: Array | jax.ShapeDtypeStruct, rows: int, bits: int = 8
) -> bool:
  """Whether the native kernel is faster than XLA, and can run.

  A program that is partitioned over several devices has no kernel: XLA
  partitions the product instead.

  Args:
    x: activations.
    w: weight, as stored.
    rows: number of rows of `x` as a matrix.
    bits: of one integer.
  """
  if x.dtype not in _MAX_ROWS or w.dtype not in _FORMATS[bits]:
    return False
  weights = w.size * rows_per_element(w.dtype, bits)
  return (
    any(
      0 < rows <= max_rows and weights >= min_weights
      for max_rows, min_weights in _MAX_ROWS[x.dtype]
    )
    and jax.sharding.get_abstract_mesh().size <= 1
    and py_utils.target_platform() == 'cpu'
    and native.has_kernel('cpu', KERNEL)
    and native.cpu_isa() in _FAST_ISAS
  )


def rows_per_element(dtype: Any, bits: int) -> int:
  """Returns the number of integers that one element of `dtype` stores."""
  return 8 * jnp.dtype(dtype).itemsize // bits


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def integer_matmul(
  x: Float[Array, 'M K'],
  w: Int[Array, 'P Q'],
  bits: int = 8,
  transposed: bool = False,
) -> Float[Array, 'M N']:
  """Returns x w, or x w^T, in the dtype of x, with sums in float32.

  Differentiable in x.

  Args:
    x: activations, float32 or bfloat16.
    w: weight [K, N], or [N, K] if transposed. With bits=8 its rows are int8.
      With bits=4 an element has 2 (int8) or 8 (int32) rows below one another,
      the first in the lowest bits.
    bits: of one integer, signed.
    transposed: whether the weight is transposed.
  """
  if not native.has_kernel('cpu', KERNEL):
    return reference(x, w, bits, transposed)
  return jax.lax.platform_dependent(
    x,
    w,
    cpu=functools.partial(_native, bits=bits, transposed=transposed),
    default=functools.partial(reference, bits=bits, transposed=transposed),
  )


@integer_matmul.defjvp
def _integer_matmul_jvp(
  bits: int, transposed: bool, primals: Any, tangents: Any
) -> tuple[Array, Array]:
  x, w = primals
  tangent = reference(tangents[0], w, bits, transposed)
  return integer_matmul(x, w, bits, transposed), tangent


def reference(
  x: Float[Array, 'M K'],
  w: Int[Array, 'P Q'],
  bits: int = 8,
  transposed: bool = False,
) -> Float[Array, 'M N']:
  """Returns x w, or x w^T, by XLA."""
  count = rows_per_element(w.dtype, bits)
  if count > 1:
    above = bits * np.arange(count)[::-1, None].astype(w.dtype)
    rows = (w[:, None] << above) >> (bits * (count - 1))
    w = rows.reshape(count * w.shape[0], w.shape[1])
  return jnp.einsum('mk,nk->mn' if transposed else 'mk,kn->mn', x, w)


def _native(
  x: Float[Array, 'M K'], w: Int[Array, 'P Q'], bits: int, transposed: bool
) -> Float[Array, 'M N']:
  columns = w.shape[1]
  if transposed:
    columns = w.shape[0] * rows_per_element(w.dtype, bits)
  shape = jax.ShapeDtypeStruct((x.shape[0], columns), x.dtype)
  call = jax.ffi.ffi_call(KERNEL, shape, vmap_method='sequential')
  return call(x, w, bits=np.int64(bits), transposed=transposed)
