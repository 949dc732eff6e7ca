# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Inverse roots against numpy's eigendecomposition in float64."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis.optimizers.shampoo import inverse_roots

RIDGE = 1e-3


def _matrix(size, seed=0, smallest=1e-2):
  rng = np.random.default_rng(seed)
  vectors = np.linalg.qr(rng.normal(size=(size, size)))[0]
  values = np.geomspace(smallest, 10.0, size)
  return ((vectors * values) @ vectors.T).astype(np.float32)


def _by_hand(matrix, power, relative):
  values, vectors = np.linalg.eigh(matrix.astype(np.float64))
  ridge = RIDGE * (values[-1] if relative else 1.0)
  return (vectors * (values + ridge) ** (-1.0 / power)) @ vectors.T


@pytest.mark.parametrize(
  'way', [inverse_roots.newton_root, inverse_roots.eigh_root]
)
@pytest.mark.parametrize(
  'power, relative', [(1, True), (2, False), (4, True), (7, True)]
)
def test_roots(way, power, relative):
  many = np.stack([_matrix(5, seed) for seed in range(3)])
  root = jax.jit(
    jax.vmap(
      functools.partial(way, power=power, ridge=RIDGE, relative=relative)
    )
  )(many)
  for got, matrix in zip(root.value, many, strict=True):
    want = _by_hand(matrix, power, relative)
    np.testing.assert_allclose(got, want, atol=2e-4 * np.abs(want).max())
  assert np.all(root.error < 1e-4)


def test_a_number_is_a_matrix():
  root = inverse_roots.newton_root(
    jnp.full([1, 1], 4.0), 2, 0.0, relative=False
  )
  np.testing.assert_allclose(root.value, [[0.5]], rtol=1e-6)
  assert root.error == 0.0


def test_largest_eigenvalue():
  for size in (1, 6):
    got = inverse_roots.largest_eigenvalue(jnp.asarray(_matrix(size)))
    want = np.linalg.eigvalsh(_matrix(size))[-1]
    np.testing.assert_allclose(got, want, rtol=1e-3)


def test_zero_has_the_root_of_the_smallest_ridge():
  root = inverse_roots.newton_root(jnp.zeros([3, 3]), 2, 1e-2, relative=True)
  np.testing.assert_allclose(root.value, 1e4 * np.eye(3), rtol=1e-3, atol=1)


def test_a_matrix_of_nans_is_an_error():
  root = inverse_roots.newton_root(
    jnp.full([3, 3], jnp.nan), 4, 1e-6, relative=True
  )
  assert not root.error < 0.1


def test_a_largest_entry_that_grows_at_first_is_no_divergence():
  # Entries of m - identity are at most 0.55 at first, then 0.71.
  values = np.array([2.3e-3, 0.5925, 7.4747, 58.4665])
  signs = np.array(
    [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]
  )
  matrix = ((signs / 2 * values) @ (signs / 2).T).astype(np.float32)
  root = inverse_roots.newton_root(jnp.asarray(matrix), 3, RIDGE, relative=True)
  assert root.error < 1e-5
  want = _by_hand(matrix, 3, True)
  np.testing.assert_allclose(root.value, want, atol=1e-3 * np.abs(want).max())


def test_a_few_large_eigenvalues_are_treated_apart():
  """Newton alone is less exact for what is small beside them."""
  rng = np.random.default_rng(0)
  vectors = np.linalg.qr(rng.normal(size=(24, 24)))[0]
  values = np.concatenate([np.geomspace(1, 2, 21), [1e5, 2e5, 1e6]])
  matrix = ((vectors * values) @ vectors.T).astype(np.float32)
  want = _by_hand((matrix + matrix.T) / 2, 4, False)
  # What rounds up a group is the identity: it must not disturb its neighbors.
  many = jnp.stack([jnp.asarray((matrix + matrix.T) / 2), jnp.eye(24)])
  mended = functools.partial(
    inverse_roots.deflated_newton_root, largest=3, iterations=3
  )

  @functools.partial(jax.jit, static_argnums=1)
  def root_of(many, way):
    arguments = dict(power=4, ridge=RIDGE, relative=False)
    return jax.vmap(functools.partial(way, **arguments))(many).value[0]

  plain, better = (
    np.abs(root_of(many, way) - want).max() / np.abs(want).max()
    for way in (inverse_roots.newton_root, mended)
  )
  assert better < 1.5e-3 and better < plain / 1.5


def test_a_small_matrix_is_left_as_it_is():
  matrix = jnp.asarray(_matrix(10))
  arguments = dict(power=2, ridge=RIDGE, relative=True)
  plain = inverse_roots.newton_root(matrix, **arguments)
  mended = inverse_roots.deflated_newton_root(
    matrix, largest=2, iterations=2, **arguments
  )
  np.testing.assert_array_equal(plain.value, mended.value)


def test_a_compressed_root_is_that_of_a_simpler_matrix():
  matrix = _matrix(6)
  root = inverse_roots.compressed_root(
    jnp.asarray(matrix), 4, RIDGE, relative=True, rank=2
  )
  low, column = root.value[:, :2], root.value[:, 2]
  got = column[0] * np.eye(6) - low @ low.T
  values, vectors = np.linalg.eigh(matrix.astype(np.float64))
  values[:4] = values[:4].mean()
  want = _by_hand((vectors * values) @ vectors.T, 4, True)
  np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())
  assert root.error < 1e-5 and not np.any(column[1:])
