# SPDX-License-Identifier: Apache-2.0
"""Moves tokens to rows in the order of their experts, and back.

The gradients of both directions are gathers, too: that of XLA's gather is a
scatter, which TPUs run row by row and GPUs by atomic additions.

Shapes: N tokens, k choices of a token, R rows, at most L of a token, G groups,
M model dimension.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from praxis import py_utils


class RowOrder(NamedTuple):
  """Rows of choices, sorted by group."""

  # The index among all N * k of the choice of each row.
  choices: Int[Array, ' R']
  # The token of each row; N for rows without a group, which come last.
  tokens: Int[Array, ' R']
  # The rows of each token; R or more for none.
  rows: Int[Array, 'N L']
  group_sizes: Int[Array, ' G']

  @property
  def is_grouped(self) -> Bool[Array, ' R']:
    return self.tokens < self.rows.shape[0]


def sort_by_group(
  groups: Int[Array, 'N k'], num_groups: int, num_rows: int
) -> RowOrder:
  """Returns the order of the rows.

  Args:
    groups: of each choice; `num_groups` for none. Those of a token differ.
    num_groups: G.
    num_rows: R, at least the number of choices with a group.
  """
  num_tokens, k = groups.shape
  flat = groups.reshape(-1)
  order = jnp.argsort(flat)
  group_sizes = jnp.bincount(flat, length=num_groups + 1)[:-1]
  num_grouped = jnp.sum(group_sizes)
  choices = order[:num_rows]
  is_grouped = jnp.arange(num_rows) < num_grouped
  # Sorted, so that rows with a group come first.
  rows = jnp.sort(jnp.argsort(order).reshape(-1, k), axis=-1)
  rows = rows[:, : min(k, num_groups)]
  return RowOrder(
    choices=choices,
    tokens=jnp.where(is_grouped, choices // k, num_tokens),
    # Those without a group remain unique.
    rows=rows + jnp.where(rows < num_grouped, 0, num_rows),
    group_sizes=group_sizes.astype(jnp.int32),
  )


def gather_tokens(
  order: RowOrder, tokens: Float[Array, 'N M']
) -> Float[Array, 'R M']:
  """Returns the token of each row; 0 for rows without a group."""
  if py_utils.target_platform() == 'cpu':
    return _gather_tokens(order, tokens)
  return _gather_tokens_by_vjp(order, tokens)


def sum_rows(order: RowOrder, rows: Float[Array, 'R M']) -> Float[Array, 'N M']:
  """Returns the sum of the rows of each token."""
  if py_utils.target_platform() == 'cpu':
    return _sum_rows(order, rows)
  return _sum_rows_by_vjp(order, rows)


def _gather_tokens(
  order: RowOrder, tokens: Float[Array, 'N M']
) -> Float[Array, 'R M']:
  return tokens.at[order.tokens].get(mode='fill', fill_value=0)


def _sum_rows(
  order: RowOrder, rows: Float[Array, 'R M']
) -> Float[Array, 'N M']:
  of_tokens = rows.at[order.rows].get(
    mode='fill', fill_value=0, unique_indices=True
  )
  return jnp.sum(of_tokens, axis=-2)


# Each is the transpose of the other. They have no derivatives in forward mode,
# which XLA's gathers on CPUs have.
_gather_tokens_by_vjp = jax.custom_vjp(_gather_tokens)
_sum_rows_by_vjp = jax.custom_vjp(_sum_rows)
_gather_tokens_by_vjp.defvjp(
  lambda order, tokens: (_gather_tokens(order, tokens), order),
  lambda order, drows: (None, _sum_rows_by_vjp(order, drows)),
)
_sum_rows_by_vjp.defvjp(
  lambda order, rows: (_sum_rows(order, rows), order),
  lambda order, dtokens: (None, _gather_tokens_by_vjp(order, dtokens)),
)
