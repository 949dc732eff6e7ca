# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The hand-written step computes the same in each style of its loss."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import baseline_lm


@pytest.mark.optimized
def test_the_loss_in_chunks_is_the_loss():
  keys = jax.random.split(jax.random.key(0), 4)
  params = {
    'table': jax.random.normal(keys[0], [6, 11]),
    'table_bias': jax.random.normal(keys[1], [11]),
  }
  x = jax.random.normal(keys[2], [2, 8, 6])
  labels = jax.random.randint(keys[3], [2, 8], 0, 11)

  @functools.partial(jax.jit, static_argnums=2)
  def losses(params, x, num_chunks):
    return baseline_lm.chunked_cross_entropies(params, x, labels, num_chunks)

  @functools.partial(jax.jit, static_argnums=0)
  def gradients(num_chunks):
    # Each token has another weight.
    weights = jnp.arange(16.0).reshape(2, 8)
    return jax.grad(
      lambda *args: jnp.sum(losses(*args, num_chunks) * weights), argnums=(0, 1)
    )(params, x)

  np.testing.assert_allclose(
    losses(params, x, 4), losses(params, x, 1), rtol=1e-6
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
    gradients(4),
    gradients(1),
  )
  logits = jax.make_jaxpr(gradients, static_argnums=0)(4)
  assert '2,8,11' not in str(logits)
