# SPDX-License-Identifier: Apache-2.0
"""Dropless mixtures of experts: no capacity limit, no dropped tokens.

On accelerators tokens are sorted by expert and multiplied by grouped matrix
products (`praxis.kernels.grouped_matmul`), so the cost is proportional to the
number of rows. CPUs lack such a product: they compute every expert on all
tokens. The CPU path is bit-identical for any assignment of experts to devices
where a row of XLA's matrix product does not depend on the other rows (with
AVX-512; with AVX2 the last bit can differ): XLA cannot fuse across the boundary
of an expert.

Shapes: N tokens, k experts per token, R = N * k rows, E experts, M model
dimension, H hidden dimension.

References: MegaBlocks, https://arxiv.org/abs/2211.15841
"""

from __future__ import annotations

import fractions
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from praxis.kernels import grouped_matmul
from praxis.layers.moe import routed_rows, row_order

# Rows of the buffer of a device, relative to those of balanced experts. They
# are a multiple of the least, so that kernels have whole tiles.
BUFFER_FACTOR = 2
_MIN_BUFFER_ROWS = 4096

# (rows, weight, bias of each expert or None) -> rows; a plain or a grouped
# matrix product.
Matmul = Callable[..., Array]


class ExpertWeights(NamedTuple):
  """Weights of experts, with or without a dimension of experts.

  Experts add no bias to their outputs: the sum over the experts of a token is
  a product of all its gates, which needs no rows.
  """

  # One input projection, or two if gated.
  inputs: list[Float[Array, '*E M H']]
  output: Float[Array, '*E H M']
  # As many as input projections, or none.
  input_biases: Sequence[Float[Array, '*E H']] = ()

  def input_projections(
    self, rows: Float[Array, 'R M'], matmul: Matmul
  ) -> list[Float[Array, 'R H']]:
    """Returns the input projections of rows."""
    biases: Sequence[Array | None] = self.input_biases
    if not biases:
      biases = [None] * len(self.inputs)
    return [
      matmul(rows, weight, bias)
      for weight, bias in zip(self.inputs, biases, strict=True)
    ]


# (weights, rows, gates of the rows [R, 1], matmul) -> rows.
# It multiplies by the gates before its last product: after it, compilers fuse
# the multiplication with a sum, whose rounding then depends on the summands.
ExpertFn = Callable[[ExpertWeights, Array, Array, Matmul], Array]


class TopKExperts(NamedTuple):
  """The experts of each token."""

  indices: Int[Array, '*N k']
  # 0 for a token without expert, such as padding.
  gates: Float[Array, '*N k']

  def flatten_tokens(self) -> TopKExperts:
    """Returns the same with one token dimension."""
    return TopKExperts(*(x.reshape(-1, x.shape[-1]) for x in self))


def top_k_experts(
  masks: list[Float[Array, '*N E']], gates: list[Float[Array, '*N']]
) -> TopKExperts:
  """Converts one-hot masks, all zero for unassigned tokens, to indices."""
  one_hot = jnp.stack(masks, axis=-2)
  gate = jnp.stack(gates, axis=-1)
  return TopKExperts(
    indices=jnp.argmax(one_hot, axis=-1).astype(jnp.int32),
    gates=gate * jnp.sum(one_hot, axis=-1),
  )


def mixture(
  tokens: Float[Array, '*N M'],
  top_k: TopKExperts,
  weights: ExpertWeights,
  expert_fn: ExpertFn,
  first_expert: Int[Array, ''] | int = 0,
  num_shards: int = 1,
) -> Float[Array, '*N M']:
  """Returns the gated sum of the outputs of the local experts.

  Args:
    tokens: inputs of the experts.
    top_k: experts of the tokens, indices among all experts.
    weights: of the local experts.
    expert_fn: applies the experts to rows.
    first_expert: global index of the first local expert.
    num_shards: number of devices that the experts are sharded over.
  """

  def on_cpu(x: Any, top_k: Any, weights: Any, first: Any) -> Array:
    return _dense_mixture_if_assigned(x, top_k, weights, expert_fn, first)

  def on_accelerator(x: Any, top_k: Any, weights: Any, first: Any) -> Array:
    return grouped_mixture(x, top_k, weights, expert_fn, first, num_shards)

  first_expert = jnp.asarray(first_expert, jnp.int32)
  return jax.lax.platform_dependent(
    *(tokens, top_k, weights, first_expert),
    cpu=on_cpu,
    default=on_accelerator,
  )


def grouped_mixture(
  tokens: Float[Array, '*N M'],
  top_k: TopKExperts,
  weights: ExpertWeights,
  expert_fn: ExpertFn,
  first_expert: Int[Array, ''] | int = 0,
  num_shards: int = 1,
) -> Float[Array, '*N M']:
  """Computes `mixture` by grouped products of rows sorted by expert.

  A device with some of the experts has a buffer of twice the rows that it gets
  where experts are balanced. If more are routed to it, it computes chunks of
  the tokens one after another, whose rows always fit.
  """
  flat = tokens.reshape(-1, tokens.shape[-1])
  top_k = top_k.flatten_tokens()
  num_tokens, k = top_k.indices.shape
  num_experts = count_experts(weights)
  buffer_size = buffer_rows(num_tokens * k, num_shards)
  # The experts of a token differ.
  rows_per_token = min(k, num_experts)
  num_chunks = count_chunks(num_tokens, rows_per_token, buffer_size)

  def at_once(
    tokens: Array, top_k: TopKExperts, weights: ExpertWeights, num_rows: int
  ) -> Array:
    balanced = fractions.Fraction(tokens.shape[0] * k, num_shards)
    with routed_rows.scope(balanced / num_rows):
      return _grouped_rows(
        tokens, top_k, weights, expert_fn, first_expert, num_rows
      )

  if num_chunks == 1:
    outputs = at_once(flat, top_k, weights, num_tokens * rows_per_token)
    return outputs.reshape(tokens.shape)

  chunk_rows = num_tokens // num_chunks * rows_per_token
  of_chunk = functools.partial(at_once, num_rows=chunk_rows)

  def one_by_one(
    tokens: Array, top_k: TopKExperts, weights: ExpertWeights
  ) -> Array:
    return in_chunks(tokens, top_k, weights, num_chunks, of_chunk)

  is_local = _is_local(top_k, first_expert, num_experts)
  outputs = jax.lax.cond(
    largest_in_batch(jnp.sum(is_local)) <= buffer_size,
    functools.partial(at_once, num_rows=buffer_size),
    one_by_one,
    *(flat, top_k, weights),
  )
  return outputs.reshape(tokens.shape)


def in_chunks(
  tokens: Float[Array, 'N M'],
  top_k: TopKExperts,
  weights: ExpertWeights,
  num_chunks: int,
  mixture_fn: Callable[[Array, TopKExperts, ExpertWeights], Array],
) -> Float[Array, 'N M']:
  """Returns a mixture of chunks of the tokens, one after another.

  It is for experts that are not balanced: analyses of cost leave it out.

  Args:
    tokens: inputs of the experts.
    top_k: experts of the tokens.
    weights: of the experts.
    num_chunks: divides N.
    mixture_fn: returns the mixture of a chunk.
  """

  @jax.checkpoint
  def of_chunk(chunk: tuple[Array, TopKExperts]) -> Array:
    tokens, top_k = chunk
    return mixture_fn(tokens, top_k, weights)

  chunks = jax.tree.map(
    lambda x: x.reshape(num_chunks, -1, *x.shape[1:]), (tokens, top_k)
  )
  with routed_rows.scope(fractions.Fraction(0)):
    return jax.lax.map(of_chunk, chunks).reshape(tokens.shape)


def buffer_rows(num_choices: int, num_shards: int) -> int:
  """Returns the rows of a device's buffer.

  Args:
    num_choices: of all devices.
    num_shards: number of devices that the experts are sharded over.
  """
  num_rows = BUFFER_FACTOR * num_choices / num_shards
  return _MIN_BUFFER_ROWS * max(1, math.ceil(num_rows / _MIN_BUFFER_ROWS))


def count_chunks(num_tokens: int, rows_per_token: int, buffer_size: int) -> int:
  """Returns the least divisor of the tokens whose chunks fit a buffer."""
  return next(
    n
    for n in range(1, num_tokens + 1)
    if num_tokens % n == 0 and num_tokens // n * rows_per_token <= buffer_size
  )


@jax.custom_batching.custom_vmap
def largest_in_batch(size: Int[Array, '']) -> Int[Array, '']:
  """Returns the size, or the largest of a batch, as stages of a pipeline are.

  A condition that differs within a batch would compute both branches.
  """
  return size


@largest_in_batch.def_vmap
def _largest_of(
  axis_size: int, in_batched: list[bool], sizes: Int[Array, ' B']
) -> tuple[Int[Array, ''], bool]:
  del axis_size, in_batched
  return largest_in_batch(jnp.max(sizes)), False


def _is_local(
  top_k: TopKExperts, first_expert: Int[Array, ''] | int, num_experts: int
) -> Bool[Array, '*N k']:
  """Returns whether a choice has a gate and is one of the local experts."""
  expert = top_k.indices - first_expert
  return (expert >= 0) & (expert < num_experts) & (top_k.gates != 0.0)


def _grouped_rows(
  tokens: Float[Array, 'N M'],
  top_k: TopKExperts,
  weights: ExpertWeights,
  expert_fn: ExpertFn,
  first_expert: Int[Array, ''] | int,
  num_rows: int,
) -> Float[Array, 'N M']:
  """Computes `mixture` where at most `num_rows` choices are local."""
  num_experts = count_experts(weights)
  is_local = _is_local(top_k, first_expert, num_experts)
  groups = jnp.where(is_local, top_k.indices - first_expert, num_experts)
  order = row_order.sort_by_group(groups, num_experts, num_rows)
  gates = row_order.gather_gates(
    order, groups, top_k.gates.astype(tokens.dtype)
  )
  outputs = expert_fn(
    weights,
    row_order.gather_tokens(order, tokens),
    gates[:, jnp.newaxis],
    grouped_products(order.group_sizes),
  )
  return row_order.sum_rows(order, outputs)


def grouped_products(group_sizes: Int[Array, ' E']) -> Matmul:
  """Returns the products of rows with the weights of their experts.

  Args:
    group_sizes: rows of each expert, in this order. Products leave the rows
      after them undefined.
  """
  ends = jnp.cumsum(group_sizes)

  def matmul(rows: Array, weight: Array, bias: Array | None = None) -> Array:
    outputs = grouped_matmul.grouped_matmul(rows, weight, group_sizes)
    if bias is None:
      return outputs
    row = jnp.arange(rows.shape[0])
    groups = jnp.searchsorted(ends, row, side='right')
    # A product, whose gradient is one too: that of a gather is a scatter.
    one_hot = jax.nn.one_hot(groups, len(group_sizes), dtype=rows.dtype)
    is_grouped = (row < ends[-1])[:, jnp.newaxis]
    return outputs + jnp.where(is_grouped, one_hot @ bias, 0.0)

  return matmul


def _dense_mixture_if_assigned(
  tokens: Float[Array, '*N M'],
  top_k: TopKExperts,
  weights: ExpertWeights,
  expert_fn: ExpertFn,
  first_expert: Int[Array, ''] | int,
) -> Float[Array, '*N M']:
  """Computes `_dense_mixture` if any token has a local expert.

  XLA does not fuse across a conditional, so the rounding does not depend on the
  number of local experts. (Its CPU compiler drops optimization barriers before
  it fuses.)
  """

  def dense(tokens: Array, top_k: TopKExperts, weights: ExpertWeights) -> Array:
    rows = tokens.reshape(-1, tokens.shape[-1])
    outputs = _dense_mixture(
      rows, top_k.flatten_tokens(), weights, expert_fn, first_expert
    )
    return outputs.reshape(tokens.shape)

  def zeros(tokens: Array, top_k: TopKExperts, weights: ExpertWeights) -> Array:
    return jnp.zeros_like(tokens)

  return jax.lax.cond(
    jnp.any(_is_local(top_k, first_expert, count_experts(weights))),
    dense,
    zeros,
    *(tokens, top_k, weights),
  )


def _dense_mixture(
  tokens: Float[Array, 'N M'],
  top_k: TopKExperts,
  weights: ExpertWeights,
  expert_fn: ExpertFn,
  first_expert: Int[Array, ''] | int,
) -> Float[Array, 'N M']:
  """Computes `mixture` with every local expert on all tokens."""
  total = jnp.zeros_like(tokens)
  for i in range(count_experts(weights)):
    weight = jax.tree.map(lambda x: x[i], weights)  # noqa: B023
    is_assigned = top_k.indices == first_expert + i
    gates = jnp.where(is_assigned, top_k.gates, 0.0)
    gates = jnp.sum(gates, axis=-1, keepdims=True).astype(tokens.dtype)
    # The barrier keeps XLA from summing gradients of several experts at once.
    rows = jax.lax.optimization_barrier(tokens)
    outputs = expert_fn(weight, rows, gates, _matmul)
    has_expert = jnp.any(is_assigned, axis=-1, keepdims=True)
    total = total + jnp.where(has_expert, outputs, 0.0)
  return total


def _matmul(
  rows: Float[Array, 'R I'],
  weight: Float[Array, 'I O'],
  bias: Float[Array, ' O'] | None = None,
) -> Float[Array, 'R O']:
  outputs = jnp.matmul(rows, weight)
  return outputs if bias is None else outputs + bias


def count_experts(weights: ExpertWeights) -> int:
  """Returns the number of experts that have the weights."""
  return jax.tree.leaves(weights)[0].shape[0]
