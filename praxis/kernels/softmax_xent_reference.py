# SPDX-License-Identifier: Apache-2.0
"""Softmax cross entropy in jnp, a chunk of tokens at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Sizes of one chunk of logits: enough tokens to keep a matrix product busy and
# to read the table seldom, no more memory than that asks for.
_MAX_CHUNK_TOKENS = 512
_MIN_CHUNK_TOKENS = 256
_CHUNK_LOGITS = 2**24
_TOKENS_MULTIPLE = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
  """What is computed, apart from the arrays."""

  # c * tanh(logits / c) replaces the logits; 0 leaves them alone.
  soft_cap: float = 0.0
  # Weight of logsumexp**2 beside the cross entropy.
  z_loss_weight: float = 0.0
  # Probability moved from the label, evenly, to the other classes.
  label_smoothing: float = 0.0
  # Whether the table is [V, D] instead of [D, V].
  transposed: bool = False

  def vocab(self, table: Array) -> int:
    """Returns how many classes `table` has."""
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
  """Cotangents per token; a label below zero makes the first one zero.

  The gradient is that of sum(xent * (xent + z_loss_weight * logsumexp**2)
  + logsumexp * logsumexp), weights on the left of each product.
  """

  xent: Float[Array, ' N']
  logsumexp: Float[Array, ' N']


# (logits, labels, weights, dtype) -> (tokens, gradient of the logits in dtype).
RowsGradient = Callable[..., tuple[Tokens, Array]]


def chunk_tokens(tokens: int, vocab: int) -> int:
  """Tokens in a chunk: a multiple of 32 that cuts `tokens` evenly."""
  most = max(_MIN_CHUNK_TOKENS, min(_MAX_CHUNK_TOKENS, _CHUNK_LOGITS // vocab))
  chunks = max(-(-tokens // most), 1)
  even = -(-tokens // chunks)
  return max(-(-even // _TOKENS_MULTIPLE), 1) * _TOKENS_MULTIPLE


def logits(
  x: Float[Array, 'N D'],
  table: Float[Array, 'rows columns'],
  bias: Float[Array, ' B'],
  spec: Spec,
) -> Float[Array, 'N V']:
  """Returns capped logits in float32; an empty bias is none."""
  out = _dot(x, table, (1, 1 if spec.transposed else 0))
  if bias.size:
    out = out + bias
  if spec.soft_cap > 0:
    out = spec.soft_cap * jnp.tanh(out / spec.soft_cap)
  return out


def tokens_from_logits(
  logits: Float[Array, 'N V'], labels: Int[Array, ' N'], spec: Spec
) -> Tokens:
  """Returns the results of a block of capped logits."""
  vocab = logits.shape[-1]
  logsumexp = jax.nn.logsumexp(logits, axis=-1)
  picked = jnp.take_along_axis(
    logits, jnp.maximum(labels, 0)[:, None], axis=-1, mode='fill'
  )[:, 0]
  target = picked
  if spec.label_smoothing:
    off = spec.label_smoothing / max(vocab - 1, 1)
    others = jnp.sum(logits, axis=-1) - picked
    target = (1 - spec.label_smoothing) * picked + off * others
  xent = jnp.where(labels < 0, 0.0, logsumexp - target)
  argmax = jnp.argmax(jax.lax.stop_gradient(logits), axis=-1)
  return Tokens(xent, logsumexp, argmax.astype(jnp.int32))


def rows_gradient(
  logits: Float[Array, 'N V'],
  labels: Int[Array, ' N'],
  weights: Weights,
  spec: Spec,
) -> tuple[Tokens, Float[Array, 'N V']]:
  """Returns a block's results and the gradient of its uncapped logits."""
  tokens = tokens_from_logits(logits, labels, spec)
  xent = jnp.where(labels < 0, 0.0, weights.xent)
  off = spec.label_smoothing / max(logits.shape[-1] - 1, 1)
  z_weight = 2 * spec.z_loss_weight * xent * tokens.logsumexp
  probability = xent + weights.logsumexp + z_weight
  is_label = jnp.arange(logits.shape[-1]) == labels[:, None]
  target = jnp.where(is_label, 1 - spec.label_smoothing, off)
  gradient = probability[:, None] * jnp.exp(logits - tokens.logsumexp[:, None])
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
  """Returns the results per token, with one chunk of logits at a time."""

  def chunk(args: tuple[Array, Array]) -> Tokens:
    block = logits(args[0], table, bias, spec)
    return tokens_from_logits(block, args[1], spec)

  n = x.shape[0]
  size = chunk_tokens(n, spec.vocab(table))
  chunks = (_cut(x, size), _cut(labels, size))
  return _join(jax.lax.map(chunk, chunks), n)


def gradient_by(rows: RowsGradient) -> Callable[..., tuple[Tokens, Gradients]]:
  """Returns a function like `gradient` that leaves the softmax to `rows`."""

  def gradient(
    x: Float[Array, 'N D'],
    table: Float[Array, 'rows columns'],
    bias: Float[Array, ' B'],
    labels: Int[Array, ' N'],
    weights: Weights,
    spec: Spec,
  ) -> tuple[Tokens, Gradients]:
    """Returns the results and their gradients, one chunk at a time."""

    def chunk(
      sums: tuple[Array, Array], args: tuple[Array, Array, Weights]
    ) -> tuple[tuple[Array, Array], tuple[Tokens, Array]]:
      x, labels, weights = args
      block = logits(x, table, bias, spec)
      tokens, block = rows(block, labels, weights, spec)
      dbias = jnp.sum(block, axis=0)[: bias.size]
      block = block.astype(x.dtype)
      dx = _dot(block, table, (1, 0 if spec.transposed else 1))
      pair = (block, x) if spec.transposed else (x, block)
      sums = (sums[0] + _dot(*pair, (0, 0)), sums[1] + dbias)
      return sums, (tokens, dx.astype(x.dtype))

    n = x.shape[0]
    size = chunk_tokens(n, spec.vocab(table))
    zeros = (jnp.zeros(table.shape, jnp.float32), jnp.zeros_like(bias))
    chunks = jax.tree.map(lambda a: _cut(a, size), (x, labels, weights))
    (dtable, dbias), (tokens, dx) = jax.lax.scan(chunk, zeros, chunks)
    grads = Gradients(_join(dx, n), dtable.astype(table.dtype), dbias)
    return _join(tokens, n), grads

  return gradient


gradient = gradient_by(rows_gradient)


def _dot(a: Array, b: Array, axes: tuple[int, int]) -> Float[Array, 'M N']:
  """The product over one axis of each matrix, in float32."""
  dimensions = (((axes[0],), (axes[1],)), ((), ()))
  return jax.lax.dot_general(
    a, b, dimensions, preferred_element_type=jnp.float32
  )


def _cut(a: Array, size: int) -> Array:
  """[N, ...] -> [chunks, size, ...], padded; labels are padded with zeros."""
  padding = [(0, -a.shape[0] % size)] + [(0, 0)] * (a.ndim - 1)
  return jnp.pad(a, padding).reshape(-1, size, *a.shape[1:])


def _join(tree: Any, n: int) -> Any:
  return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:n], tree)
