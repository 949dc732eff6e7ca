# SPDX-License-Identifier: Apache-2.0
"""Softmax cross entropy in jnp, in chunks of tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Size of a chunk of logits: enough tokens for efficient matmuls and few reads
# of the table, within a bounded amount of memory.
_MAX_CHUNK_TOKENS = 512
_MIN_CHUNK_TOKENS = 256
_CHUNK_LOGITS = 2**24
# A GPU needs this many rows to be busy.
_MIN_GPU_CHUNK_TOKENS = 4096
_TOKENS_MULTIPLE = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
  """Parameters of the loss."""

  # c of the soft cap c * tanh(logits / c); 0: no cap.
  soft_cap: float = 0.0
  # Weight of the z-loss logsumexp**2 (arXiv:2204.02311, section 5).
  z_loss_weight: float = 0.0
  # Probability that is spread evenly over the classes except the label.
  label_smoothing: float = 0.0
  # Whether the table is [V, D] instead of [D, V].
  transposed: bool = False

  def vocab(self, table: Array) -> int:
    """Returns the number of classes of `table`."""
    return table.shape[0 if self.transposed else 1]


class Tokens(NamedTuple):
  """Results per token."""

  xent: Float[Array, ' N']
  logsumexp: Float[Array, ' N']
  argmax: Int[Array, ' N']


class Gradients(NamedTuple):
  """Gradients of a weighted sum over the tokens."""

  x: Float[Array, 'N D']
  table: Float[Array, 'rows columns']
  bias: Float[Array, ' V']


class Weights(NamedTuple):
  """Cotangents per token; that of `xent` is 0 for negative labels.

  The gradient is that of sum(weights.xent * (xent + z_loss_weight *
  logsumexp**2) + weights.logsumexp * logsumexp).
  """

  xent: Float[Array, ' N']
  logsumexp: Float[Array, ' N']
  # The logsumexp over all classes, of which the table has a part; None: over
  # those of the table. Only the gradients use it.
  normalizer: Float[Array, ' N'] | None = None


# (logits, labels, weights, dtype) -> (tokens, gradient of the logits in dtype).
RowsGradient = Callable[..., tuple[Tokens, Array]]


def chunk_tokens(tokens: int, vocab: int) -> int:
  """Returns the chunk size: a multiple of 32 for chunks of similar size."""
  limit = max(_MIN_CHUNK_TOKENS, min(_MAX_CHUNK_TOKENS, _CHUNK_LOGITS // vocab))
  return _chunk_of(tokens, chunks=max(-(-tokens // limit), 1))


def gpu_chunk_tokens(tokens: int, vocab: int) -> int:
  """Returns the chunk size with the CUDA kernel, for any `vocab`."""
  del vocab
  return _chunk_of(tokens, chunks=max(tokens // _MIN_GPU_CHUNK_TOKENS, 1))


def _chunk_of(tokens: int, chunks: int) -> int:
  per_chunk = -(-tokens // chunks)
  return max(-(-per_chunk // _TOKENS_MULTIPLE), 1) * _TOKENS_MULTIPLE


def logits(
  x: Float[Array, 'N D'],
  table: Float[Array, 'rows columns'],
  bias: Float[Array, ' B'],
  spec: Spec,
) -> Float[Array, 'N V']:
  """Returns soft-capped float32 logits; an empty bias is ignored."""
  out = _dot(x, table, (1, 1 if spec.transposed else 0))
  if bias.size:
    out = out + bias
  return soft_capped(out, spec)


def soft_capped(logits: Float[Array, '*B'], spec: Spec) -> Float[Array, '*B']:
  """Returns c * tanh(logits / c), or `logits` without a cap."""
  if spec.soft_cap > 0:
    return spec.soft_cap * jnp.tanh(logits / spec.soft_cap)
  return logits


def tokens_from_logits(
  logits: Float[Array, 'N V'], labels: Int[Array, ' N'], spec: Spec
) -> Tokens:
  """Returns the results of a block of soft-capped logits."""
  vocab = logits.shape[-1]
  logsumexp = jax.nn.logsumexp(logits, axis=-1)
  label_logits = jnp.take_along_axis(
    logits, jnp.maximum(labels, 0)[:, None], axis=-1, mode='fill'
  )[:, 0]
  target = label_logits
  if spec.label_smoothing:
    off = spec.label_smoothing / max(vocab - 1, 1)
    others = jnp.sum(logits, axis=-1) - label_logits
    target = (1 - spec.label_smoothing) * label_logits + off * others
  xent = jnp.where(labels < 0, 0.0, logsumexp - target)
  argmax = jnp.argmax(jax.lax.stop_gradient(logits), axis=-1)
  return Tokens(xent, logsumexp, argmax.astype(jnp.int32))


def rows_gradient(
  logits: Float[Array, 'N V'],
  labels: Int[Array, ' N'],
  weights: Weights,
  spec: Spec,
) -> tuple[Tokens, Float[Array, 'N V']]:
  """Returns the results of a block and the gradient of its uncapped logits."""
  tokens = tokens_from_logits(logits, labels, spec)
  logsumexp = weights.normalizer
  if logsumexp is None:
    logsumexp = tokens.logsumexp
  xent = jnp.where(labels < 0, 0.0, weights.xent)
  off = spec.label_smoothing / max(logits.shape[-1] - 1, 1)
  z_weight = 2 * spec.z_loss_weight * xent * logsumexp
  probability = xent + weights.logsumexp + z_weight
  is_label = jnp.arange(logits.shape[-1]) == labels[:, None]
  target = jnp.where(is_label, 1 - spec.label_smoothing, off)
  gradient = probability[:, None] * jnp.exp(logits - logsumexp[:, None])
  gradient -= xent[:, None] * target
  if spec.soft_cap > 0:
    gradient *= 1 - jnp.square(logits / spec.soft_cap)
  return tokens, gradient


def forward(
  x: Float[Array, 'N D'],
  table: Float[Array, 'rows columns'],
  bias: Float[Array, ' B'],
  labels: Int[Array, ' N'],
  spec: Spec,
) -> Tokens:
  """Returns the results per token, computed in chunks."""

  def chunk(args: tuple[Array, Array]) -> Tokens:
    block = logits(args[0], table, bias, spec)
    return tokens_from_logits(block, args[1], spec)

  n = x.shape[0]
  size = chunk_tokens(n, spec.vocab(table))
  chunks = (_to_chunks(x, size), _to_chunks(labels, size))
  return _join(jax.lax.map(chunk, chunks), n)


def token_tangents(
  operands: tuple[Array, Array, Array],
  tangents: tuple[Array, Array, Array],
  labels: Int[Array, ' N'],
  spec: Spec,
) -> tuple[Float[Array, ' N'], Float[Array, ' N']]:
  """Returns the tangents of `xent` and `logsumexp`, computed in chunks.

  The result is linear in the tangents; its transpose also works in chunks.

  Args:
    operands: x, the table and the bias, as in `forward`.
    tangents: their tangents.
    labels: class ids.
    spec: parameters of the loss.
  """
  x, *constants = operands
  dx, *dconstants = tangents

  # Without checkpoint the transpose would keep the logits of all chunks.
  @jax.checkpoint
  def chunk(args: tuple[Array, Array, Array]) -> tuple[Array, Array]:
    x, dx, labels = args

    def run(x: Array, table: Array, bias: Array) -> tuple[Array, Array]:
      tokens = tokens_from_logits(logits(x, table, bias, spec), labels, spec)
      return tokens.xent, tokens.logsumexp

    return jax.jvp(run, (x, *constants), (dx, *dconstants))[1]

  n = x.shape[0]
  size = chunk_tokens(n, spec.vocab(constants[0]))
  chunks = tuple(_to_chunks(a, size) for a in (x, dx, labels))
  return _join(jax.lax.map(chunk, chunks), n)


def gradient_by(
  rows: RowsGradient, chunk_size: Callable[[int, int], int] = chunk_tokens
) -> Callable[..., tuple[Tokens, Gradients]]:
  """Returns a function like `gradient` that computes the softmax by `rows`.

  Args:
    rows: computes results and gradient of a chunk of logits.
    chunk_size: (tokens, vocab) -> tokens of a chunk.
  """

  def gradient(
    x: Float[Array, 'N D'],
    table: Float[Array, 'rows columns'],
    bias: Float[Array, ' B'],
    labels: Int[Array, ' N'],
    weights: Weights,
    spec: Spec,
  ) -> tuple[Tokens, Gradients]:
    """Returns the results and their gradients, computed in chunks."""

    def chunk(
      sums: tuple[Array, Array], args: tuple[Array, Array, Weights, Array]
    ) -> tuple[tuple[Array, Array], tuple[Tokens, Array]]:
      x, labels, weights, is_token = args
      block = logits(x, table, bias, spec)
      tokens, block = rows(block, labels, weights, spec)
      if n % size:
        # The logits of padding are NaN if the table is not finite.
        block = jnp.where(is_token[:, None], block, 0.0)
      dbias = jnp.sum(block, axis=0)[: bias.size]
      block = block.astype(x.dtype)
      dx = _dot(block, table, (1, 0 if spec.transposed else 1))
      pair = (block, x) if spec.transposed else (x, block)
      sums = (sums[0] + _dot(*pair, (0, 0)), sums[1] + dbias)
      return sums, (tokens, dx.astype(x.dtype))

    n = x.shape[0]
    size = chunk_size(n, spec.vocab(table))
    zeros = (jnp.zeros(table.shape, jnp.float32), jnp.zeros_like(bias))
    by_token = (x, labels, weights, jnp.ones(n, bool))
    chunks = jax.tree.map(lambda a: _to_chunks(a, size), by_token)
    (dtable, dbias), (tokens, dx) = jax.lax.scan(chunk, zeros, chunks)
    grads = Gradients(_join(dx, n), dtable.astype(table.dtype), dbias)
    return _join(tokens, n), grads

  return gradient


gradient = gradient_by(rows_gradient)


def _dot(a: Array, b: Array, axes: tuple[int, int]) -> Float[Array, 'M N']:
  """Returns the float32 product over one dimension of each matrix."""
  dimensions = (((axes[0],), (axes[1],)), ((), ()))
  return jax.lax.dot_general(
    a, b, dimensions, preferred_element_type=jnp.float32
  )


def _to_chunks(a: Array, size: int) -> Array:
  """Reshapes [N, ...] to [chunks, size, ...], padded with zeros."""
  padding = [(0, -a.shape[0] % size)] + [(0, 0)] * (a.ndim - 1)
  a = jnp.pad(a, padding)
  return a.reshape(a.shape[0] // size, size, *a.shape[1:])


def _join(tree: Any, n: int) -> Any:
  def join(a: Array) -> Array:
    return a.reshape(a.shape[0] * a.shape[1], *a.shape[2:])[:n]

  return jax.tree.map(join, tree)
