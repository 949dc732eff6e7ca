# SPDX-License-Identifier: Apache-2.0
"""Experts that turn no token away.

On accelerators tokens are sorted by expert, so that each expert has a run of
rows; products of runs with the weights of their experts take as long as there
are rows. CPUs have no such product: they compute all tokens at each expert in
turn. There, a token's numbers are the same bit by bit whichever experts a
device has: it always stands at the same place in products of the same shape,
and what is computed before and after is compiled apart from that.

Shapes: N tokens, R = N · k rows for k choices of each, E experts, M model and H
hidden dimension.

References: MegaBlocks, https://arxiv.org/abs/2211.15841
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Rows times a weight.
Product = Callable[[Array, Array], Array]
# (weights, rows, what each row's output counts, how to multiply) -> rows
Experts = Callable[[Any, Array, Array, Product], Array]


class Chosen(NamedTuple):
  """The experts of each token's choice."""

  # Which ones.
  expert: Int[Array, '*N k']
  # What each counts for the token; 0 for a token that goes nowhere.
  gate: Float[Array, '*N k']

  def flat(self) -> Chosen:
    """Returns the same of tokens in a row."""
    return Chosen(*(x.reshape(-1, x.shape[-1]) for x in self))


def chosen(
  masks: list[Float[Array, '*N E']], gates: list[Float[Array, '*N']]
) -> Chosen:
  """Returns choices that are one-hot, 0 for a token that goes nowhere."""
  one_hot = jnp.stack(masks, axis=-2)
  gate = jnp.stack(gates, axis=-1)
  return Chosen(
    expert=jnp.argmax(one_hot, axis=-1).astype(jnp.int32),
    gate=gate * jnp.sum(one_hot, axis=-1),
  )


def mix(
  tokens: Float[Array, '*N M'],
  choices: Chosen,
  weights: Any,
  experts: Experts,
  first: Int[Array, ''] | int = 0,
) -> Float[Array, '*N M']:
  """Returns the sum of experts' outputs, as much as they count for a token.

  The experts are some of all; what others would give is left out.

  Args:
    tokens: what goes to experts.
    choices: of these tokens, among all experts.
    weights: of the experts here, which are their leading axis.
    experts: what experts make of their rows. They multiply by what a row
      counts before their last product: after it, compilers would fuse the
      multiplication with a sum, whose rounding then depends on what is added.
    first: number of the first expert here.
  """

  def all_rows(*args: Any) -> Array:
    return mix_if_any(*args[:3], experts, args[3])

  def runs(*args: Any) -> Array:
    return mix_runs(*args[:3], experts, args[3])

  first = jnp.asarray(first, jnp.int32)
  return jax.lax.platform_dependent(
    tokens, choices, weights, first, cpu=all_rows, default=runs
  )


def mix_runs(
  tokens: Float[Array, '*N M'],
  choices: Chosen,
  weights: Any,
  experts: Experts,
  first: Int[Array, ''] | int = 0,
) -> Float[Array, '*N M']:
  """As `mix`, by products of runs of rows."""
  num_experts = _count(weights)
  count = choices.expert.shape[-1]
  expert = choices.expert.reshape(-1) - first
  is_here = (expert >= 0) & (expert < num_experts)
  # Rows of other experts come last and belong to nobody.
  expert = jnp.where(is_here, expert, num_experts)
  order = jnp.argsort(expert)
  sizes = jnp.bincount(expert, length=num_experts + 1)[:-1].astype(jnp.int32)
  gate = jnp.where(is_here, choices.gate.reshape(-1), 0.0)
  outputs = experts(
    weights,
    tokens.reshape(-1, tokens.shape[-1])[order // count],
    gate[order, jnp.newaxis].astype(tokens.dtype),
    lambda rows, weight: jax.lax.ragged_dot(rows, weight, sizes),
  )
  outputs = outputs[jnp.argsort(order)]
  outputs = jnp.where(is_here[:, jnp.newaxis], outputs, 0.0)
  outputs = outputs.reshape(*tokens.shape[:-1], count, tokens.shape[-1])
  return jnp.sum(outputs, axis=-2)


def mix_if_any(
  tokens: Float[Array, '*N M'],
  choices: Chosen,
  weights: Any,
  experts: Experts,
  first: Int[Array, ''] | int = 0,
) -> Float[Array, '*N M']:
  """As `mix`, one expert after the other, if any token chose one of them.

  What a conditional holds is not fused with what is around it, and so rounds
  in the same way next to any number of experts. XLA's compiler for CPUs drops
  optimization barriers before it fuses.
  """
  last = first + _count(weights)
  is_here = (choices.expert >= first) & (choices.expert < last)

  def in_turn(tokens: Array, choices: Chosen, weights: Any) -> Array:
    rows = tokens.reshape(-1, tokens.shape[-1])
    mixed = mix_in_turn(rows, choices.flat(), weights, experts, first)
    return mixed.reshape(tokens.shape)

  def nothing(tokens: Array, choices: Chosen, weights: Any) -> Array:
    return jnp.zeros_like(tokens)

  return jax.lax.cond(
    jnp.any(is_here & (choices.gate != 0.0)),
    in_turn,
    nothing,
    *(tokens, choices, weights),
  )


def mix_in_turn(
  tokens: Float[Array, 'N M'],
  choices: Chosen,
  weights: Any,
  experts: Experts,
  first: Int[Array, ''] | int = 0,
) -> Float[Array, 'N M']:
  """As `mix`, one expert after the other, with all tokens."""
  total = jnp.zeros_like(tokens)
  for i in range(_count(weights)):
    weight = jax.tree.map(lambda x: x[i], weights)  # noqa: B023
    is_mine = choices.expert == first + i
    gate = jnp.sum(
      jnp.where(is_mine, choices.gate, 0.0), axis=-1, keepdims=True
    )
    # The barrier keeps the gradients of experts apart until each is whole.
    rows = jax.lax.optimization_barrier(tokens)
    outputs = experts(weight, rows, gate.astype(tokens.dtype), jnp.matmul)
    is_chosen = jnp.any(is_mine, axis=-1, keepdims=True)
    total = total + jnp.where(is_chosen, outputs, 0.0)
  return total


def _count(weights: Any) -> int:
  return jax.tree.leaves(weights)[0].shape[0]
