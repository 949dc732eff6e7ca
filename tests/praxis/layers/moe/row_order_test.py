# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Rows in the order of their groups against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers.moe import row_order
from praxis.py_utils import platforms

# Two of three groups for each of five tokens; 3 is none.
_GROUPS = [[2, 0], [3, 3], [0, 3], [3, 2], [0, 1]]
_NUM_GROUPS, _NUM_ROWS = 3, 8
# By hand: the choices of group 0, of 1 and of 2.
_TOKENS = [0, 2, 4, 4, 0, 3]


def _order():
  groups = jnp.asarray(_GROUPS, jnp.int32)
  return row_order.sort_by_group(groups, _NUM_GROUPS, _NUM_ROWS)


def test_rows_are_sorted_by_group():
  order = _order()
  assert order.choices[:6].tolist() == [1, 4, 8, 9, 0, 7]
  assert order.tokens.tolist() == [*_TOKENS, 5, 5]
  assert order.is_grouped.tolist() == [True] * 6 + [False] * 2
  assert order.group_sizes.tolist() == [3, 1, 2]
  rows = [sorted(int(r) for r in row if r < _NUM_ROWS) for row in order.rows]
  assert rows == [[0, 4], [], [1], [5], [2, 3]]
  assert len(np.unique(order.rows)) == order.rows.size


@pytest.mark.parametrize('platform', ['cpu', 'tpu'])
def test_values_and_gradients(platform):
  order = _order()
  tokens = np.arange(1.0, 11.0).reshape(5, 2)
  rows = np.arange(1.0, 17.0).reshape(_NUM_ROWS, 2)
  # The matrix that takes tokens to rows.
  matrix = np.zeros((_NUM_ROWS, 5))
  matrix[np.arange(6), _TOKENS] = 1.0

  with platforms.tracing_for(platform):
    gathered, of_tokens = jax.vjp(
      lambda x: row_order.gather_tokens(order, x), jnp.asarray(tokens)
    )
    summed, of_rows = jax.vjp(
      lambda x: row_order.sum_rows(order, x), jnp.asarray(rows)
    )
    np.testing.assert_array_equal(gathered, matrix @ tokens)
    np.testing.assert_array_equal(summed, matrix.T @ rows)
    # Those of rows without a group are undefined.
    undefined = jnp.asarray(rows).at[6:].set(jnp.nan)
    np.testing.assert_array_equal(of_tokens(undefined)[0], matrix.T @ rows)
    np.testing.assert_array_equal(
      of_rows(jnp.asarray(tokens))[0], matrix @ tokens
    )


def test_gradients_on_accelerators_are_gathers():
  def primitives(fn, x, platform):
    with platforms.tracing_for(platform):
      pull = jax.vjp(lambda x: fn(_order(), x), x)[1]
      return str(jax.make_jaxpr(pull)(jnp.ones_like(fn(_order(), x))))

  for fn, x in (
    (row_order.gather_tokens, jnp.ones((5, 2))),
    (row_order.sum_rows, jnp.ones((_NUM_ROWS, 2))),
  ):
    assert 'scatter' in primitives(fn, x, 'cpu')
    assert 'scatter' not in primitives(fn, x, 'gpu')
