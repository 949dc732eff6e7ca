# SPDX-License-Identifier: Apache-2.0
"""Pseudorandom permutations that are evaluated per index, without storage."""

from __future__ import annotations

import numpy as np

from pax.inputs.rows import native

_ROUNDS = 6
_UINT64 = np.uint64


def permuted(indices: np.ndarray, size: int, seed: int) -> np.ndarray:
  """Returns the images of `indices` under a permutation of `range(size)`.

  A Feistel network permutes the next larger power of four; values outside
  `range(size)` are permuted again until they are inside (cycle walking).

  Args:
    indices: Integers in `range(size)`, of any shape.
    size: Number of permuted integers.
    seed: Seed of the permutation, which is the same on every machine.

  Raises:
    ValueError: an index is outside `range(size)`.

  References:
    Black and Rogaway, Ciphers with arbitrary finite domains (2002):
    cycle walking.
  """
  indices = np.asarray(indices)
  if indices.size and not 0 <= indices.min() <= indices.max() < size:
    raise ValueError(
      f'indices must be within 0 and {size - 1}, got {indices.min()} to '
      f'{indices.max()}'
    )
  if (extension := native.load()) is not None:
    return extension.permute(indices, size, seed % 2**64)
  return _permuted(indices, size, seed)


def endless(positions: np.ndarray, size: int, seed: int) -> np.ndarray:
  """Returns the elements of `range(size)` at positions of an infinite sequence.

  Each epoch of `size` positions is another permutation.
  """
  epochs, indices = np.divmod(positions, size)
  for epoch in np.unique(epochs):
    is_epoch = epochs == epoch
    epoch_seed = seed + (int(epoch) << 32)
    indices[is_epoch] = permuted(indices[is_epoch], size, epoch_seed)
  return indices


def _permuted(indices: np.ndarray, size: int, seed: int) -> np.ndarray:
  """The reference of csrc/host/index_permutation.h."""
  half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
  keys = _mix(np.arange(_ROUNDS, dtype=_UINT64), _mixed_seed(seed))
  out = _feistel(indices.astype(_UINT64), half_bits, keys)
  while (outside := out >= size).any():
    out[outside] = _feistel(out[outside], half_bits, keys)
  return out.astype(np.int64)


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
  """Returns the SplitMix64 finalizer of `values` and `key`."""
  z = values * _UINT64(0x9E3779B97F4A7C15) + key
  z = (z ^ (z >> _UINT64(30))) * _UINT64(0xBF58476D1CE4E5B9)
  z = (z ^ (z >> _UINT64(27))) * _UINT64(0x94D049BB133111EB)
  return z ^ (z >> _UINT64(31))
