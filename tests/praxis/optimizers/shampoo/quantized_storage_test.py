# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Tensors kept as integers come back nearly as they were."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from praxis.optimizers import masked_trees
from praxis.optimizers.shampoo import quantized_storage


def _matrices():
  x = np.random.default_rng(0).normal(size=(2, 4, 4)).astype(np.float32)
  return x @ x.swapaxes(1, 2)


def test_floats_are_kept_as_they_are():
  kept = quantized_storage.store_matrices(jnp.asarray(_matrices()), 'float32')
  assert masked_trees.is_masked(kept.scale) and masked_trees.is_masked(
    kept.diagonal
  )
  np.testing.assert_array_equal(quantized_storage.load(kept), _matrices())


def test_matrices_keep_their_diagonal_exactly():
  x = _matrices()
  kept = quantized_storage.store_matrices(jnp.asarray(x), 'int16')
  assert kept.values.dtype == jnp.int16
  assert kept.scale.shape == kept.diagonal.shape == (2, 4)
  back = np.asarray(quantized_storage.load(kept))
  np.testing.assert_array_equal(
    back.diagonal(axis1=1, axis2=2), x.diagonal(axis1=1, axis2=2)
  )
  largest = np.abs(x * (1 - np.eye(4))).max(axis=1, keepdims=True)
  assert np.all(np.abs(back - x) <= 0.51 * largest / 32767 + 1e-6)


def test_momenta_are_scaled_by_column():
  x = np.array([[1.0, 100.0], [0.5, -50.0]], np.float32)
  kept = quantized_storage.store(jnp.asarray(x), 'int8')
  np.testing.assert_array_equal(kept.values, [[127, 127], [64, -64]])
  np.testing.assert_allclose(quantized_storage.load(kept), x, rtol=0.01)
