# SPDX-License-Identifier: Apache-2.0
"""Experts that turn no token away.

Tokens are sorted by expert, so that each expert has a run of rows; products of
runs with the weights of their experts take as long as there are rows.

References: MegaBlocks, https://arxiv.org/abs/2211.15841
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# (rows sorted by expert, how many rows each expert has) -> rows
Experts = Callable[[Float[Array, 'R M'], Int[Array, 'E']], Float[Array, 'R M']]


def mix(
  tokens: Float[Array, 'N M'],
  weights: list[Float[Array, 'N E']],
  experts: Experts,
) -> Float[Array, 'N M']:
  """Returns the sum of experts' outputs, as much as they count for a token.

  Args:
    tokens: what goes to experts.
    weights: for each of a token's choices, what the chosen expert counts for
      it; 0 for all others.
    experts: what experts make of their rows.
  """
  choices = jnp.stack(weights, axis=1)
  expert = jnp.argmax(choices, axis=-1).reshape(-1)
  gate = jnp.sum(choices, axis=-1).astype(tokens.dtype)
  order = jnp.argsort(expert)
  sizes = jnp.bincount(expert, length=choices.shape[-1])
  outputs = experts(tokens[order // len(weights)], sizes.astype(jnp.int32))
  back = jnp.argsort(order)
  outputs = outputs[back].reshape(*gate.shape, -1)
  return jnp.einsum('nkm,nk->nm', outputs, gate)


def product(
  rows: Float[Array, 'R M'],
  weight: Float[Array, 'E M H'],
  sizes: Int[Array, 'E'],
) -> Float[Array, 'R H']:
  """Returns the rows of each expert times its weight."""
  return jax.lax.ragged_dot(rows, weight, sizes)
