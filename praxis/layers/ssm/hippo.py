# SPDX-License-Identifier: Apache-2.0
"""HiPPO matrices in float64; they are constants of a model.

References: HiPPO, https://arxiv.org/abs/2008.07669; S4,
https://arxiv.org/abs/2111.00396, for the normal plus low-rank (NPLR) and the
diagonal plus low-rank (DPLR) form
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Complex, Float

_Matrix = Float[np.ndarray, 'N N']
_Vector = Float[np.ndarray, 'N']


def make_hippo(n: int, hippo_type: str) -> _Matrix:
  """Returns the HiPPO matrix A of type 'LegS' or 'LagT'."""
  _check_hippo_type(hippo_type)
  if hippo_type == 'LagT':
    return -np.tril(np.ones([n, n]))
  roots = np.sqrt(1 + 2 * np.arange(n))
  return np.diag(np.arange(n, dtype=np.float64)) - np.tril(
    np.outer(roots, roots)
  )


def make_nplr_hippo(
  n: int, hippo_type: str
) -> tuple[_Matrix, _Vector, _Vector]:
  """Returns A, P and B of the NPLR form, where A + P Pᵀ is normal."""
  a = make_hippo(n, hippo_type)
  if hippo_type == 'LagT':
    return a, np.full(n, 0.5**0.5), np.ones(n)
  return a, np.sqrt(np.arange(n) + 0.5), np.sqrt(2 * np.arange(n) + 1.0)


def make_dplr_hippo(
  n: int, hippo_type: str
) -> tuple[
  Complex[np.ndarray, ' N'],
  Complex[np.ndarray, ' N'],
  Complex[np.ndarray, ' N'],
  Complex[np.ndarray, 'N N'],
]:
  """Returns the DPLR form: eigenvalues Λ of A + P Pᵀ, V*P, V*B, and V.

  V holds the eigenvectors. The imaginary parts of the eigenvalues of 'LagT'
  are multiplied by n.
  """
  a, p, b = make_nplr_hippo(n, hippo_type)
  normal = a + np.outer(p, p)
  # The normal matrix is a multiple of the identity plus a skew-symmetric one.
  real = np.full(n, np.mean(np.diagonal(normal)))
  imag, vectors = np.linalg.eigh(normal * -1j)
  if hippo_type == 'LagT':
    imag = imag * n
  v_conj = vectors.conj().T
  return real + 1j * imag, v_conj @ p, v_conj @ b, vectors


def _check_hippo_type(hippo_type: str) -> None:
  if hippo_type not in ('LegS', 'LagT'):
    raise ValueError(f"hippo_type must be 'LegS' or 'LagT', got {hippo_type!r}")
