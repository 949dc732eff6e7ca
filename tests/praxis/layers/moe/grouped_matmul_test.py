# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Products of groups of rows against one product for each group."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers.moe import grouped_matmul
from praxis.py_utils import platforms

# The last rows have no group.
_SIZES = (100, 0, 37, 150, 3)
_NUM_ROWS, _K, _N = 384, 96, 160


def _arrays():
  rng = np.random.default_rng(0)
  return (
    rng.normal(size=(_NUM_ROWS, _K)),
    rng.normal(size=(len(_SIZES), _K, _N)),
    rng.normal(size=(sum(_SIZES), _N)),
  )


@pytest.mark.parametrize(
  'product',
  [
    grouped_matmul.grouped_matmul,
    functools.partial(grouped_matmul.by_megablox, interpret=True),
  ],
)
def test_products_and_gradients(product):
  rows, weights, cotangent = _arrays()
  sizes = jnp.asarray(_SIZES, jnp.int32)

  def grouped(rows, weights):
    return product(rows, weights, sizes)[: sum(_SIZES)]

  @jax.jit
  def run(rows, weights, cotangent):
    outputs, pull = jax.vjp(grouped, rows, weights)
    return outputs, *pull(cotangent)

  args = (jnp.asarray(x, jnp.float32) for x in (rows, weights, cotangent))
  outputs, of_rows, of_weights = run(*args)
  start = 0
  for i, size in enumerate(_SIZES):
    group = slice(start, start := start + size)
    for got, want in (
      (outputs[group], rows[group] @ weights[i]),
      (of_rows[group], cotangent[group] @ weights[i].T),
      (of_weights[i], rows[group].T @ cotangent[group]),
    ):
      np.testing.assert_allclose(got, want, atol=1e-4)


def test_tpus_have_kernels_where_rows_fill_tiles():
  def is_kernel(num_rows, dtype=jnp.bfloat16):
    # A new function, as JAX caches what it traced for CPUs.
    jaxpr = jax.make_jaxpr(lambda *args: grouped_matmul.grouped_matmul(*args))(
      jnp.ones((num_rows, _K), dtype),
      jnp.ones((len(_SIZES), _K, _N), dtype),
      jnp.asarray(_SIZES, jnp.int32),
    )
    return 'pallas_call' in str(jaxpr)

  assert not is_kernel(_NUM_ROWS)
  with platforms.tracing_for('tpu'):
    assert is_kernel(_NUM_ROWS)
    assert not is_kernel(_NUM_ROWS + 1)
    assert not is_kernel(_NUM_ROWS, jnp.float16)
