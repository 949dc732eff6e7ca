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
  attributes = _attributes(x, table, spec)
  normalizer = weights.normalizer
  if normalizer is None:
    normalizer = jnp.zeros((0,), jnp.float32)
  shapes = (
    *_token_shapes(x.shape[0]),
    *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (x, table, bias)),
    *_scratch_shapes(x, table, spec),
  )
  call = jax.ffi.ffi_call(GRADIENT, shapes)
  out = call(
    x,
    table,
    bias,
    labels,
    weights.xent,
    weights.logsumexp,
    normalizer,
    z_loss_weight=np.float32(spec.z_loss_weight),
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
    weights.xent,
    weights.logsumexp,
    soft_cap=np.float32(spec.soft_cap),
    label_smoothing=np.float32(spec.label_smoothing),
    z_loss_weight=np.float32(spec.z_loss_weight),
  )
  return Tokens(*out[:3]), out[3]


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
  x: Array, table: Array, spec: Spec
) -> tuple[jax.ShapeDtypeStruct, ...]:
  """Returns the shapes of a chunk of logits and of sums of a bf16 table."""
  tokens, dims = x.shape
  chunk = reference.chunk_tokens(tokens, spec.vocab(table))
  columns = -(-spec.vocab(table) // _STRIP) * _STRIP
  padded_dims = max(-(-dims // _BLOCK), 1) * _BLOCK
  keep_sums = x.dtype == jnp.bfloat16 and tokens > chunk
  sizes = (
    columns * chunk,
    columns * padded_dims if keep_sums else 0,
  )
  return tuple(jax.ShapeDtypeStruct((size,), jnp.float32) for size in sizes)
