# SPDX-License-Identifier: Apache-2.0
"""Dropless mixtures of experts: no capacity limit, no dropped tokens.

On accelerators tokens are sorted by expert and multiplied by grouped matrix
products (`jax.lax.ragged_dot`), so the cost is proportional to the number of
rows. CPUs lack such a product: they compute every expert on all tokens. The CPU
path is bit-identical for any assignment of experts to devices where a row of
XLA's matrix product does not depend on the other rows (with AVX-512; with AVX2
the last bit can differ): XLA cannot fuse across the boundary of an expert.

Shapes: N tokens, k experts per token, R = N * k rows, E experts, M model
dimension, H hidden dimension.

References: MegaBlocks, https://arxiv.org/abs/2211.15841
"""

from __future__ import annotations

import fractions
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis.layers.moe import routed_rows

# The input projections (one, or two if gated) and the output projection, with
# or without a dimension of experts.
ExpertWeights = tuple[list[Float[Array, '*E M H']], Float[Array, '*E H M']]
# (rows, weight) -> rows; a plain or a grouped matrix product.
Matmul = Callable[[Array, Array], Array]
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
  """Computes `mixture` by grouped products of rows sorted by expert."""
  num_experts = _num_experts(weights)
  k = top_k.indices.shape[-1]
  expert = top_k.indices.reshape(-1) - first_expert
  gates = top_k.gates.reshape(-1)
  is_local = (expert >= 0) & (expert < num_experts) & (gates != 0.0)
  # Rows of remote experts are sorted to the end, outside of every group. A
  # token has at most num_experts others, as its experts differ.
  expert = jnp.where(is_local, expert, num_experts)
  order = jnp.argsort(expert)
  rows_per_token = min(k, num_experts)
  num_rows = expert.size // k * rows_per_token
  rows = order[:num_rows]
  sizes = jnp.bincount(expert, length=num_experts + 1)[:-1].astype(jnp.int32)
  gates = jnp.where(is_local, gates, 0.0)
  share = fractions.Fraction(k, rows_per_token * num_shards)
  with routed_rows.scope(share):
    outputs = expert_fn(
      weights,
      tokens.reshape(-1, tokens.shape[-1])[rows // k],
      gates[rows, jnp.newaxis].astype(tokens.dtype),
      lambda rows, weight: jax.lax.ragged_dot(rows, weight, sizes),
    )
  # The positions of the rows of a token, those of local experts first.
  positions = jnp.sort(jnp.argsort(order).reshape(-1, k), axis=-1)
  positions = positions[:, :rows_per_token]
  # Those of remote experts are out of bounds, and remain unique.
  positions += jnp.where(positions < jnp.sum(sizes), 0, num_rows)
  outputs = outputs.at[positions].get(
    mode='fill', fill_value=0, unique_indices=True
  )
  return jnp.sum(outputs, axis=-2).reshape(tokens.shape)


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
  end = first_expert + _num_experts(weights)
  is_local = (top_k.indices >= first_expert) & (top_k.indices < end)

  def dense(tokens: Array, top_k: TopKExperts, weights: ExpertWeights) -> Array:
    rows = tokens.reshape(-1, tokens.shape[-1])
    outputs = _dense_mixture(
      rows, top_k.flatten_tokens(), weights, expert_fn, first_expert
    )
    return outputs.reshape(tokens.shape)

  def zeros(tokens: Array, top_k: TopKExperts, weights: ExpertWeights) -> Array:
    return jnp.zeros_like(tokens)

  return jax.lax.cond(
    jnp.any(is_local & (top_k.gates != 0.0)),
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
  for i in range(_num_experts(weights)):
    weight = jax.tree.map(lambda x: x[i], weights)  # noqa: B023
    is_assigned = top_k.indices == first_expert + i
    gates = jnp.where(is_assigned, top_k.gates, 0.0)
    gates = jnp.sum(gates, axis=-1, keepdims=True).astype(tokens.dtype)
    # The barrier keeps XLA from summing gradients of several experts at once.
    rows = jax.lax.optimization_barrier(tokens)
    outputs = expert_fn(weight, rows, gates, jnp.matmul)
    has_expert = jnp.any(is_assigned, axis=-1, keepdims=True)
    total = total + jnp.where(has_expert, outputs, 0.0)
  return total


def _num_experts(weights: ExpertWeights) -> int:
  return jax.tree.leaves(weights)[0].shape[0]
