# SPDX-License-Identifier: Apache-2.0
"""Softmax cross entropy by the C++ and CUDA kernels in csrc."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from praxis.kernels import softmax_xent_reference as reference
from praxis.kernels.softmax_xent_reference import (
  Gradients,
  Spec,
  Tokens,
  Weights,
)

FORWARD = 'pax_softmax_xent'
GRADIENT = 'pax_softmax_xent_gradient'
# On GPUs XLA computes the matmuls, and the kernel computes the softmax.
ROWS = 'pax_softmax_xent_rows'

# As in csrc/kernels/tiles.h.
_BLOCK = 32
_STRIP = 128
_SKEW = 8
# Number of parallel partial sums of the gradient of x, each [chunk, D] floats.
_MIN_LANES = 8
_MAX_LANES = 32


def forward(
  x: Float[Array, 'N D'],
  table: Float[Array, 'rows columns'],
  bias: Float[Array, ' B'],
  labels: Int[Array, ' N'],
  spec: Spec,
) -> Tokens:
  """Returns the results per token without materializing logits."""
  call = jax.ffi.ffi_call(FORWARD, _token_shapes(x.shape[0]))
  return Tokens(*call(x, table, bias, labels, **_attributes(x, table, spec)))


def gradient(
  x: Float[Array, 'N D'],
  table: Float[Array, 'rows columns'],
  bias: Float[Array, ' B'],
  labels: Int[Array, ' N'],
  weights: Weights,
  spec: Spec,
) -> tuple[Tokens, Gradients]:
  """Returns the results and their gradients in one pass over the vocabulary."""
  lanes = num_lanes(spec.vocab(table), x.shape[1])
  attributes = _attributes(x, table, spec)
  shapes = (
    *_token_shapes(x.shape[0]),
    *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (x, table, bias)),
    *_scratch_shapes(x, table, spec, lanes),
  )
  call = jax.ffi.ffi_call(GRADIENT, shapes)
  out = call(
    x,
    table,
    bias,
    labels,
    *weights,
    z_loss_weight=np.float32(spec.z_loss_weight),
    lanes=np.int64(lanes),
    **attributes,
  )
  return Tokens(*out[:3]), Gradients(*out[3:6])


def rows_gradient(
  logits: Float[Array, 'N V'],
  labels: Int[Array, ' N'],
  weights: Weights,
  spec: Spec,
) -> tuple[Tokens, Float[Array, 'N V']]:
  """Computes the gradient of logits in place, in one CUDA kernel launch."""
  shapes = (
    *_token_shapes(logits.shape[0]),
    jax.ShapeDtypeStruct(logits.shape, logits.dtype),
  )
  call = jax.ffi.ffi_call(ROWS, shapes, input_output_aliases={0: 3})
  out = call(
    logits,
    labels,
    *weights,
    soft_cap=np.float32(spec.soft_cap),
    label_smoothing=np.float32(spec.label_smoothing),
    z_loss_weight=np.float32(spec.z_loss_weight),
  )
  return Tokens(*out[:3]), out[3]


def num_lanes(vocab: int, dims: int) -> int:
  """Returns the number of partial sums of the gradient of x.

  It is a function of the shapes: the order of the sums, and so the result, is
  that of any machine. A power of two is divided evenly over the threads. More
  than _MIN_LANES take at most half of the memory of the logits.
  """
  lanes = _MIN_LANES
  while lanes < _MAX_LANES and 4 * lanes * dims <= vocab:
    lanes *= 2
  return min(lanes, -(-vocab // _STRIP))


def _token_shapes(tokens: int) -> tuple[jax.ShapeDtypeStruct, ...]:
  dtypes = (jnp.float32, jnp.float32, jnp.int32)
  return tuple(jax.ShapeDtypeStruct((tokens,), dtype) for dtype in dtypes)


def _attributes(x: Array, table: Array, spec: Spec) -> dict[str, object]:
  return dict(
    soft_cap=np.float32(spec.soft_cap),
    label_smoothing=np.float32(spec.label_smoothing),
    transposed=spec.transposed,
    chunk=np.int64(reference.chunk_tokens(x.shape[0], spec.vocab(table))),
  )


def _scratch_shapes(
  x: Array, table: Array, spec: Spec, lanes: int
) -> tuple[jax.ShapeDtypeStruct, ...]:
  """Returns shapes of: a chunk of logits, sums of dx, sums of a bf16 table."""
  tokens, dims = x.shape
  chunk = reference.chunk_tokens(tokens, spec.vocab(table))
  columns = -(-spec.vocab(table) // _STRIP) * _STRIP
  padded_dims = max(-(-dims // _BLOCK), 1) * _BLOCK
  keep_sums = x.dtype == jnp.bfloat16 and tokens > chunk
  sizes = (
    columns * chunk,
    lanes * padded_dims * (chunk + _SKEW),
    columns * padded_dims if keep_sums else 0,
  )
  return tuple(jax.ShapeDtypeStruct((size,), jnp.float32) for size in sizes)
