# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Rows in the order of their groups against numpy."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis.kernels import segment_sum
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


@pytest.mark.parametrize('bits', [32, 1])
def test_rows_are_sorted_by_group(monkeypatch, bits):
  # With one bit, keys and indices are sorted as two arrays.
  monkeypatch.setattr(row_order, '_BITS', bits)
  order = _order()
  assert order.groups.tolist() == [0, 0, 0, 1, 2, 2, 3, 3]
  assert order.tokens.tolist() == [*_TOKENS, 5, 5]
  assert order.group_sizes.tolist() == [3, 1, 2]
  assert order.by_token.tolist() == [0, 4, 1, 5, 2, 3, 6, 7]
  assert order.sorted_tokens.tolist() == [0, 0, 2, 3, 4, 4, 5, 5]
  assert order.token_ends.tolist() == [2, 2, 3, 4, 6]
  places = [sorted(p for p in row if p < _NUM_ROWS) for row in order.places]
  assert places == [[0, 1], [], [2], [3], [4, 5]]
  assert len(np.unique(order.places)) == order.places.size


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
    # Rows without a group, and their gradients, are undefined.
    np.testing.assert_array_equal(gathered[:6], (matrix @ tokens)[:6])
    np.testing.assert_array_equal(summed, matrix.T @ rows)
    undefined = jnp.asarray(rows).at[6:].set(jnp.nan)
    np.testing.assert_array_equal(of_tokens(undefined)[0], matrix.T @ rows)
    np.testing.assert_array_equal(
      of_rows(jnp.asarray(tokens))[0][:6], (matrix @ tokens)[:6]
    )


@pytest.mark.parametrize('platform', ['cpu', 'tpu'])
def test_gates_of_rows(platform):
  groups = jnp.asarray(_GROUPS, jnp.int32)
  gates = jnp.arange(1.0, 11.0).reshape(5, 2)
  with platforms.tracing_for(platform):
    of_rows, pull = jax.vjp(
      lambda x: row_order.gather_gates(_order(), groups, x), gates
    )
    # The choices of `_TOKENS`, by hand.
    assert of_rows.tolist() == [2, 5, 9, 10, 1, 8, 0, 0]
    cotangents = jnp.asarray([1, 2, 3, 4, 5, 6, jnp.nan, jnp.nan])
    wanted = [[5, 1], [0, 0], [2, 0], [0, 6], [3, 4]]
    assert pull(cotangents)[0].tolist() == wanted


def test_tpus_sum_rows_by_products(monkeypatch):
  by_products = functools.partial(segment_sum.segment_sum, interpret=True)
  rng = np.random.default_rng(0)
  # Each token has 3 of 5 groups, and the last of them is of none.
  groups = jnp.argsort(jnp.asarray(rng.normal(size=(128, 5))))[:, :3]
  order = row_order.sort_by_group(groups, 4, 384)
  shape = 384, 8
  rows = jnp.asarray(rng.integers(-9, 9, size=shape), jnp.bfloat16)
  with platforms.tracing_for('gpu'):
    wanted = row_order.sum_rows(order, rows)
  calls = []
  monkeypatch.setattr(
    *(segment_sum, 'segment_sum'),
    lambda *args: calls.append(1) or by_products(*args),
  )
  with platforms.tracing_for('tpu'):
    np.testing.assert_array_equal(row_order.sum_rows(order, rows), wanted)
  assert calls


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
