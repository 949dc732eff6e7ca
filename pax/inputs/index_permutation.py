# SPDX-License-Identifier: Apache-2.0
"""Random orders that are computed at an index instead of being stored."""

from __future__ import annotations

import numpy as np

_ROUNDS = 6
_UINT64 = np.uint64


def permuted(indices: np.ndarray, size: int, seed: int) -> np.ndarray:
  """Where the permutation of `range(size)` chosen by `seed` sends `indices`.

  A Feistel network permutes the next larger square of a power of two; what
  falls outside `range(size)` is sent on until it falls inside. Nothing is kept
  between calls, so a position in the order is all the state a reader has.

  Args:
    indices: integers within `range(size)`, of any shape.
    size: how many there are to permute.
    seed: chooses the permutation; the same on every machine.

  References:
    Black and Rogaway, Ciphers with arbitrary finite domains (2002), for the
    cycle walk.
  """
  indices = np.asarray(indices)
  if indices.size and not 0 <= indices.min() <= indices.max() < size:
    raise ValueError(
      f'indices must be within 0 and {size - 1}, got {indices.min()} to '
      f'{indices.max()}'
    )
  half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
  keys = _mix(np.arange(_ROUNDS, dtype=_UINT64), _mixed_seed(seed))
  out = _feistel(indices.astype(_UINT64), half_bits, keys)
  while (outside := out >= size).any():
    out[outside] = _feistel(out[outside], half_bits, keys)
  return out.astype(np.int64)


def endless(positions: np.ndarray, size: int, seed: int) -> np.ndarray:
  """Which of `range(size)` come at `positions` of an order without an end.

  Each epoch, of `size` positions, is a permutation of its own.
  """
  epochs, indices = np.divmod(positions, size)
  for epoch in np.unique(epochs):
    here = epochs == epoch
    indices[here] = permuted(indices[here], size, seed + (int(epoch) << 32))
  return indices


def _feistel(
  values: np.ndarray, half_bits: int, keys: np.ndarray
) -> np.ndarray:
  shift, mask = _UINT64(half_bits), _UINT64((1 << half_bits) - 1)
  left, right = values >> shift, values & mask
  for key in keys:
    left, right = right, left ^ (_mix(right, key) & mask)
  return (left << shift) | right


def _mixed_seed(seed: int) -> np.uint64:
  return _mix(np.array([seed % 2**64], _UINT64), _UINT64(0))[0]


def _mix(values: np.ndarray, key: np.uint64) -> np.ndarray:
  """The finaliser of SplitMix64, on `values` and `key` together."""
  z = values * _UINT64(0x9E3779B97F4A7C15) + key
  z = (z ^ (z >> _UINT64(30))) * _UINT64(0xBF58476D1CE4E5B9)
  z = (z ^ (z >> _UINT64(27))) * _UINT64(0x94D049BB133111EB)
  return z ^ (z >> _UINT64(31))
