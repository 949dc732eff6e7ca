# SPDX-License-Identifier: Apache-2.0
"""Weighted mixtures of sources, as a function of the position."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from pax.inputs.rows import index_permutation

# Positions in which each component occurs in proportion to its weight.
BLOCK_SIZE = 1 << 13


class Mixture:
  """An endless sequence of records of several sources, without state.

  Each block of positions has a fixed number of records of each component, in
  an order that depends on the block. So the component of a position, and how
  many of its records precede, take constant time. The records of a component
  repeat in another random order each epoch.
  """

  def __init__(self, sizes: Sequence[int], weights: Sequence[float], seed: int):
    """Divides a block among the components.

    Args:
      sizes: Number of records of each component.
      weights: Weight of each component, which need not sum to 1.
      seed: Seed of all orders.

    Raises:
      ValueError: A component has no records, or a weight is not positive, or
        so small that a block has no record of the component.
    """
    self._sizes = tuple(sizes)
    self._starts = np.cumsum([0, *sizes])
    self._seed = seed
    # Records of each component in a block.
    self.counts = _shares(self._sizes, weights)

  def indices(self, positions: Int64[np.ndarray, ' N']) -> np.ndarray:
    """Returns the records at some positions.

    Args:
      positions: Positions in the endless sequence.

    Returns:
      Indices in the concatenation of the components.
    """
    out = np.empty_like(positions)
    blocks, offsets = np.divmod(positions, BLOCK_SIZE)
    for block in np.unique(blocks):
      is_block = blocks == block
      out[is_block] = self._records(int(block), offsets[is_block])
    return out

  def _records(self, block: int, offsets: np.ndarray) -> np.ndarray:
    """Returns the records at some offsets of a block."""
    out = np.empty_like(offsets)
    components, ranks = (array[offsets] for array in self._order(block))
    for component in np.unique(components):
      is_component = components == component
      positions = block * self.counts[component] + ranks[is_component]
      out[is_component] = self._starts[component] + index_permutation.endless(
        positions, self._sizes[component], self._seed + int(component)
      )
    return out

  @functools.lru_cache(maxsize=4)  # noqa: B019  A mixture lives with its input.
  def _order(self, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns component, and rank in it, at each offset of a block."""
    slots = index_permutation.permuted(
      np.arange(BLOCK_SIZE), BLOCK_SIZE, self._seed ^ (block + 1 << 20)
    )
    components = np.repeat(np.arange(len(self.counts)), self.counts)[slots]
    ranks = np.empty_like(components)
    starts = np.cumsum(self.counts) - self.counts
    by_component = np.argsort(components, kind='stable')
    ranks[by_component] = np.arange(BLOCK_SIZE)
    return components, ranks - starts[components]


def check_weights(weights: Sequence[float], num_components: int) -> None:
  """Checks the weights of components.

  Raises:
    ValueError: They are not positive numbers, one for each component.
  """
  others = [w for w in weights if not isinstance(w, int | float | np.number)]
  if others:
    raise ValueError(f'weights must be numbers, got {others[0]!r}')
  values = np.asarray(weights, float)
  if len(values) != num_components or not (values > 0).all():
    raise ValueError(
      f'weights must be positive, one for each of the {num_components}'
      f' components, got {list(weights)}'
    )
  if not np.isfinite(values).all():
    raise ValueError(f'weights must be finite, got {list(weights)}')


def _shares(sizes: Sequence[int], weights: Sequence[float]) -> np.ndarray:
  """Returns the records of each component in a block (largest remainder)."""
  check_weights(weights, len(sizes))
  values = np.asarray(weights, float)
  if not all(sizes):
    raise ValueError(
      f'every component of a mixture must have records, got sizes {list(sizes)}'
    )
  exact = values / values.sum() * BLOCK_SIZE
  counts = np.floor(exact).astype(np.int64)
  largest = np.argsort(counts - exact, kind='stable')
  counts[largest[: BLOCK_SIZE - counts.sum()]] += 1
  if not counts.all():
    smallest = float(values[counts == 0].max() / values.sum())
    raise ValueError(
      f'the share of a component must be at least 1/{BLOCK_SIZE}, got'
      f' {smallest:.2g}; increase its weight or leave it out'
    )
  return counts
