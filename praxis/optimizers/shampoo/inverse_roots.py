# SPDX-License-Identifier: Apache-2.0
"""Inverse p-th roots of symmetric positive semi-definite matrices.

All methods first add a ridge to the diagonal: `ridge`, or with `relative` that
fraction of the largest eigenvalue. They return the root and its error.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from praxis import lazy_loader
from praxis.pytypes import JTensor

# Lazy: it imports SciPy, which takes longer than all of Optax.
linalg = lazy_loader.LazyLoader(
  'linalg', globals(), 'jax.experimental.sparse.linalg'
)

_ITERATIONS = 100
_TOLERANCE = 1e-6
# The iteration ends if the norm of m - identity grows by more than this factor.
# The maximum entry may grow during convergence.
_LARGEST_GROWTH = 1.2
# Lower bound of the largest eigenvalue in a relative ridge.
_SMALLEST_SCALE = 1e-6


class Root(NamedTuple):
  """An inverse root."""

  # [N, N], or the format of `compressed_root`.
  value: Float[Array, 'N M']
  # Maximum absolute difference to the identity, or of the decomposition.
  error: Float[Array, '']


class _Power(NamedTuple):
  """State of the power iteration."""

  step: Int[Array, '']
  vector: Float[Array, ' N']
  value: Float[Array, '']
  last: Float[Array, '']


class _Newton(NamedTuple):
  """State of the iteration: m converges to the identity, h to the root."""

  step: Int[Array, '']
  m: Float[Array, 'N N']
  h: Float[Array, 'N N']
  last_h: Float[Array, 'N N']
  error: Float[Array, '']
  # Norm of m - identity, and its ratio to that of the previous step.
  distance: Float[Array, '']
  growth: Float[Array, '']


def largest_eigenvalue(matrix: Float[Array, 'N N']) -> Float[Array, '']:
  """Returns the largest eigenvalue, by power iteration."""
  start = np.random.default_rng(0).uniform(-1.0, 1.0, matrix.shape[0])

  def is_unconverged(state: _Power) -> Bool[Array, '']:
    change = jnp.abs(state.value - state.last)
    return (state.step < _ITERATIONS) & (change > _TOLERANCE * state.value)

  def iterate(state: _Power) -> _Power:
    vector = state.vector / jnp.maximum(jnp.linalg.norm(state.vector), 1e-30)
    image = _matmul(matrix, vector)
    return _Power(state.step + 1, image, _matmul(vector, image), state.value)

  one = jnp.float32(1.0)
  first = _Power(jnp.int32(0), jnp.asarray(start, jnp.float32), one, 0.0 * one)
  return jax.lax.while_loop(is_unconverged, iterate, first).value


def newton_root(
  matrix: Float[Array, 'N N'],
  power: int,
  ridge: JTensor | float,
  *,
  relative: bool,
) -> Root:
  """Returns (matrix + ridge)^(-1/power), by coupled Newton iteration.

  It needs matrix products only.

  Args:
    matrix: the matrix.
    power: the root.
    ridge: added to the diagonal.
    relative: whether the ridge is a fraction of the largest eigenvalue.

  References:
    Higham, Functions of Matrices, equation 7.18,
    https://doi.org/10.1137/1.9780898717778
  """
  n = matrix.shape[0]
  identity = jnp.eye(n, dtype=jnp.float32)
  scale = largest_eigenvalue(matrix) if relative else jnp.float32(1.0)
  damped = matrix + ridge * jnp.maximum(scale, _SMALLEST_SCALE) * identity
  if n == 1:
    return Root(damped ** (-1.0 / power), jnp.float32(0.0))

  def state(
    step: JTensor, m: JTensor, h: JTensor, last_h: JTensor, last: JTensor
  ) -> _Newton:
    distance = jnp.linalg.norm(m - identity)
    error = jnp.max(jnp.abs(m - identity))
    return _Newton(step, m, h, last_h, error, distance, distance / last)

  def is_unconverged(newton: _Newton) -> Bool[Array, '']:
    converging = (newton.error > _TOLERANCE) & (newton.growth < _LARGEST_GROWTH)
    return converging & (newton.step < _ITERATIONS)

  def iterate(newton: _Newton) -> _Newton:
    factor = ((power + 1.0) * identity - newton.m) / power
    m = _matmul(_matrix_power(factor, power), newton.m)
    h = _matmul(newton.h, factor)
    return state(newton.step + 1, m, h, newton.h, newton.distance)

  z = (1.0 + power) / (2.0 * jnp.linalg.norm(damped))
  m, h = damped * z, identity * z ** (1.0 / power)
  start = state(jnp.int32(0), m, h, h, jnp.float32(jnp.inf))
  end = jax.lax.while_loop(is_unconverged, iterate, start)
  diverged = end.growth >= _LARGEST_GROWTH
  return Root(jnp.where(diverged, end.last_h, end.h), end.error)


def deflated_newton_root(
  matrix: Float[Array, 'N N'],
  power: int,
  ridge: float,
  *,
  relative: bool,
  largest: int,
  iterations: int,
) -> Root:
  """Returns the root by `newton_root` with deflated largest eigenvalues.

  The largest eigenvalues are lowered to the smallest of them, which improves
  the condition number. The root is then corrected along their eigenvectors.
  Matrices with at most five times as many rows are not deflated.

  Args:
    matrix: the matrix.
    power: the root.
    ridge: added to the diagonal.
    relative: whether the ridge is a fraction of the largest eigenvalue.
    largest: number of eigenvalues to deflate.
    iterations: maximum number of LOBPCG iterations.

  References:
    Knyazev, Toward the Optimal Preconditioned Eigensolver,
    https://doi.org/10.1137/S1064827500366124
  """
  n = matrix.shape[0]
  if n <= 5 * largest:
    return newton_root(matrix, power, ridge, relative=relative)
  start = np.random.default_rng(0).normal(size=(n, largest))
  values, vectors, _ = linalg.lobpcg_standard(
    matrix, jnp.asarray(np.linalg.qr(start)[0], jnp.float32), m=iterations
  )
  scale = jnp.maximum(values[0], _SMALLEST_SCALE) if relative else 1.0
  added = ridge * scale
  low = values[-1]
  lowered = matrix - _matmul(vectors * (values - low), vectors.T)
  root = newton_root(lowered, power, added, relative=False)
  excess = (low + added) ** (-1.0 / power) - (values + added) ** (-1.0 / power)
  value = root.value - _matmul(vectors * excess, vectors.T)
  return Root(value, root.error)


def eigh_root(
  matrix: Float[Array, 'N N'], power: int, ridge: float, *, relative: bool
) -> Root:
  """Returns (matrix + ridge)^(-1/power) by eigendecomposition.

  The error is that of the decomposition relative to the largest eigenvalue.

  Args:
    matrix: the matrix.
    power: the root.
    ridge: added to the diagonal.
    relative: whether the ridge is a fraction of the largest eigenvalue.
  """
  values, vectors = jnp.linalg.eigh(matrix)
  largest = jnp.maximum(values[-1], _SMALLEST_SCALE)
  damped = jnp.maximum(values, 0.0) + ridge * (largest if relative else 1.0)
  root = _matmul(vectors * damped ** (-1.0 / power), vectors.T)
  reconstructed = _matmul(vectors * values, vectors.T)
  return Root(root, jnp.max(jnp.abs(reconstructed - matrix)) / largest)


def compressed_root(
  matrix: Float[Array, 'N N'],
  power: int,
  ridge: float,
  *,
  relative: bool,
  rank: int,
) -> Root:
  """Returns a low-rank approximation of (matrix + ridge)^(-1/power).

  All but the `rank` largest eigenvalues are replaced by their mean. The root is
  c I - U Uᵀ; the value is [N, rank + 1]: U, and a column with c in its first
  row.

  Args:
    matrix: the matrix.
    power: the root.
    ridge: added to the diagonal.
    relative: whether the ridge is a fraction of the largest eigenvalue.
    rank: number of eigenvalues to keep.
  """
  values, vectors = jnp.linalg.eigh(matrix)
  reconstructed = _matmul(vectors * values, vectors.T)
  largest = jnp.maximum(values[-1], _SMALLEST_SCALE)
  error = jnp.max(jnp.abs(reconstructed - matrix)) / largest
  values = jnp.maximum(values, 0.0)
  mean = jnp.mean(values[:-rank])
  damped = jnp.append(values[-rank:], mean) + ridge * (
    largest if relative else 1.0
  )
  *roots, constant = jnp.split(damped ** (-1.0 / power), [rank])
  gap = jnp.maximum(constant - roots[0], 0.0)
  column = jnp.zeros([matrix.shape[0], 1]).at[0].set(constant)
  return Root(jnp.append(vectors[:, -rank:] * jnp.sqrt(gap), column, 1), error)


def _matrix_power(x: Float[Array, 'N N'], power: int) -> Float[Array, 'N N']:
  """Returns x^power for power >= 1 by repeated squaring."""
  half = x if power < 4 else _matrix_power(x, power // 2)
  if power == 1:
    return x
  square = _matmul(half, half)
  return _matmul(square, x) if power % 2 else square


def _matmul(a: Float[Array, ...], b: Float[Array, ...]) -> Float[Array, ...]:
  return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
