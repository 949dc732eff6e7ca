# SPDX-License-Identifier: Apache-2.0
"""Weighted mixtures of sources, as a function of the position."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

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

  Weights may change at some positions. Each component goes on with the record
  after those that it had before.
  """

  def __init__(
    self,
    sizes: Sequence[int],
    weights: Mapping[int, Sequence[float]],
    seed: int,
  ):
    """Divides the blocks among the components.

    Args:
      sizes: Number of records of each component.
      weights: The weights of all components, which need not sum to 1, by the
        position from which they hold; the first is 0. Components of weight 0
        have no records there.
      seed: Seed of all orders.

    Raises:
      ValueError: A component has no records, weights are wrong or do not begin
        at position 0, or one is so small that a block has no record of the
        component.
    """
    self._sizes = tuple(sizes)
    self._ends = np.cumsum(sizes)
    self._seed = seed
    self._starts = sorted(weights)
    if self._starts[:1] != [0]:
      raise ValueError(
        'the first weights of a mixture must hold from position 0, got those'
        f' of positions {self._starts}; add the first ones'
      )
    self._stages: list[_Stage] = []
    first_ranks = np.zeros(len(sizes), np.int64)
    for start in self._starts:
      if self._stages:
        first_ranks = self._stages[-1].first_ranks_at(start)
      counts = _shares(sizes, weights[start])
      self._stages.append(_Stage(start, counts, first_ranks, seed))

  def indices(self, positions: Int64[np.ndarray, ' N']) -> np.ndarray:
    """Returns the records at some positions.

    Args:
      positions: Positions in the endless sequence.

    Returns:
      Indices in the concatenation of the components.
    """
    components = np.empty_like(positions)
    ranks = np.empty_like(positions)
    numbers = np.searchsorted(self._starts, positions, side='right') - 1
    for number in np.unique(numbers):
      is_in = numbers == number
      stage = self._stages[number]
      components[is_in], ranks[is_in] = stage.locate(positions[is_in])
    out = np.empty_like(positions)
    for component in np.unique(components):
      is_in = components == component
      size = self._sizes[component]
      out[is_in] = (self._ends[component] - size) + index_permutation.endless(
        ranks[is_in], size, self._seed + int(component)
      )
    return out


class _Stage:
  """Positions from `start` on with the same weights."""

  def __init__(
    self, start: int, counts: np.ndarray, first_ranks: np.ndarray, seed: int
  ):
    """Starts after `first_ranks` records of each component.

    Args:
      start: First position.
      counts: Records of each component in a block.
      first_ranks: Records of each component before `start`.
      seed: Seed of the orders of blocks.
    """
    self._start = start
    self._counts = counts
    self._first_ranks = first_ranks
    self._seed = seed

  def locate(
    self, positions: Int64[np.ndarray, ' N']
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns component, and number of its earlier records, of positions."""
    blocks, offsets = np.divmod(positions - self._start, BLOCK_SIZE)
    components, ranks = np.empty_like(positions), np.empty_like(positions)
    for block in np.unique(blocks):
      is_in = blocks == block
      components[is_in], ranks[is_in] = (
        array[offsets[is_in]] for array in self._order(int(block))
      )
    return components, (
      self._first_ranks[components] + blocks * self._counts[components] + ranks
    )

  def first_ranks_at(self, position: int) -> np.ndarray:
    """Returns the number of records of each component before a position."""
    block, offset = divmod(position - self._start, BLOCK_SIZE)
    components, _ = self._order(block)
    in_block = np.bincount(components[:offset], minlength=len(self._counts))
    return self._first_ranks + block * self._counts + in_block

  @functools.lru_cache(maxsize=4)  # noqa: B019  A stage lives with its input.
  def _order(self, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns component, and rank in it, at each offset of a block."""
    slots = index_permutation.permuted(
      np.arange(BLOCK_SIZE),
      BLOCK_SIZE,
      self._seed ^ (self._start + block + 1 << 20),
    )
    components = np.repeat(np.arange(len(self._counts)), self._counts)[slots]
    ranks = np.empty_like(components)
    starts = np.cumsum(self._counts) - self._counts
    by_component = np.argsort(components, kind='stable')
    ranks[by_component] = np.arange(BLOCK_SIZE)
    return components, ranks - starts[components]


def check_weights(weights: Sequence[float], num_components: int) -> None:
  """Checks the weights of components.

  Raises:
    ValueError: They are not finite numbers of at least 0, one for each
      component, or none is positive.
  """
  others = [w for w in weights if not isinstance(w, int | float | np.number)]
  if others:
    raise ValueError(f'weights must be numbers, got {others[0]!r}')
  values = np.asarray(weights, float)
  if len(values) != num_components or not (values >= 0).all():
    raise ValueError(
      f'weights must be at least 0, one for each of the {num_components}'
      f' components, got {list(weights)}'
    )
  if not values.any():
    raise ValueError(f'one weight must be positive, got {list(weights)}')
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
  is_missing = (counts == 0) & (values > 0)
  if is_missing.any():
    smallest = float(values[is_missing].max() / values.sum())
    raise ValueError(
      f'the share of a component must be at least 1/{BLOCK_SIZE}, got'
      f' {smallest:.2g}; increase its weight or leave it out'
    )
  return counts
