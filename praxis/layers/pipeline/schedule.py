# SPDX-License-Identifier: Apache-2.0
"""Which microbatch is where in a pipeline, and when.

Stage s works at iteration t on position t - s of the sequence of all
microbatches, which a circular pipeline goes through `repeats` times. Positions
before the beginning or after the end are bubbles.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
  """The sizes of a pipeline and what follows from them."""

  num_stages: int
  num_microbatches: int
  # How often every microbatch passes all the stages.
  repeats: int = 1

  @property
  def num_valid_iterations(self) -> int:
    """For how many iterations a stage has work."""
    return self.num_microbatches * self.repeats

  @property
  def num_iterations(self) -> int:
    """How many iterations there are, bubbles included."""
    return self.num_valid_iterations + self.num_stages - 1

  def valid(self, t: Int[Array, '*T']) -> Bool[Array, '*T S']:
    """Returns which stages have work at iteration t."""
    position = self._position(t)
    return (position >= 0) & (position < self.num_valid_iterations)

  def microbatch(self, t: Int[Array, '*T']) -> Int[Array, '*T S']:
    """Returns the microbatch each stage works on (some number in bubbles)."""
    return self._position(t) % self.num_microbatches

  def repeat(self, t: Int[Array, '*T']) -> Int[Array, '*T S']:
    """Returns how often that microbatch has passed before."""
    passed = self._position(t) // self.num_microbatches
    return jnp.clip(passed, 0, self.repeats - 1)

  def _position(self, t: Int[Array, '*T']) -> Int[Array, '*T S']:
    return jnp.asarray(t)[..., jnp.newaxis] - jnp.arange(self.num_stages)


def count_microbatches(
  batch: int, num_microbatches: int | None, microbatch_size: int | None
) -> int:
  """Returns into how many microbatches a batch is split.

  Raises:
    ValueError: not exactly one of the two is given, or it does not divide.
  """
  if (num_microbatches is None) == (microbatch_size is None):
    raise ValueError(
      'exactly one of num_microbatches and microbatch_size must be set, got '
      f'{num_microbatches} and {microbatch_size}'
    )
  name, size = 'num_microbatches', num_microbatches
  if size is None:
    name, size = 'microbatch_size', microbatch_size
  if size < 1 or batch % size:
    raise ValueError(
      f'{name} must divide the batch size {batch}, got {size}; change it or '
      'PERCORE_BATCH_SIZE'
    )
  return size if num_microbatches is not None else batch // size


def split_batch(tree: Any, num_microbatches: int) -> Any:
  """Returns [B, ...] as [microbatches, B / microbatches, ...].

  Every microbatch takes each num_microbatches-th example, so that a batch that
  is split over devices gives microbatches that are split the same way.
  """

  def split(x: jax.Array) -> jax.Array:
    x = x.reshape(-1, num_microbatches, *x.shape[1:])
    return jnp.swapaxes(x, 0, 1)

  return jax.tree.map(split, tree)


def join_batch(tree: Any) -> Any:
  """Undoes split_batch."""

  def join(x: jax.Array) -> jax.Array:
    return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])

  return jax.tree.map(join, tree)
