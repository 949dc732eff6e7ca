# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""FLOPs by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pax.tools import flops


def test_products_reductions_and_what_is_free():
  def fn(x, w):
    return jnp.tanh(x @ w).reshape(-1).sum()

  found = flops.count(fn, jnp.ones((3, 5)), jnp.ones((5, 7)))
  assert found == {'dot_general': 2 * 3 * 5 * 7, 'tanh': 21, 'reduce_sum': 21}


def test_loops_count_as_often_as_they_run():
  def fn(x):
    def body(x, _):
      return jax.checkpoint(lambda y: jnp.sin(y @ y))(x), None

    return jax.lax.scan(body, x, length=6)[0]

  found = flops.count(fn, jnp.ones((4, 4)))
  assert found == {'dot_general': 6 * 2 * 64, 'sin': 6 * 16}


def test_the_dearest_branch_counts():
  def fn(x, p):
    return jax.lax.cond(p, lambda x: jnp.sin(jnp.cos(x)), jnp.exp, x)

  assert flops.count(fn, jnp.ones(8), True) == {'cos': 8, 'sin': 8}


def test_convolutions():
  def fn(x, k):
    return jax.lax.conv_general_dilated(
      x, k, (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC')
    )

  found = flops.count(fn, jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 16)))
  assert found['conv_general_dilated'] == 2 * (2 * 8 * 8 * 16) * (3 * 3 * 3)


def test_custom_gradients_count_once():
  fn = lambda x: jax.nn.relu(x) * 2.0
  found = flops.count(fn, jnp.ones(5))
  assert found['max'] == 5 and found['mul'] == 5
