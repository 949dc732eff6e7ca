# SPDX-License-Identifier: Apache-2.0
"""A tensor as blocks: small dimensions merged, large ones cut."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float


def merge_small_dims(shape: Sequence[int], largest: int) -> tuple[int, ...]:
  """Returns the shape with neighbours multiplied while they stay in `largest`.

  Ones vanish: [1, 2, 512, 1, 2048, 1, 3, 4] with 1024 is [1024, 2048, 12]; a
  shape of ones alone is [1].
  """
  if shape and math.prod(shape) == 1:
    return (1,)
  merged, product = [], 1
  for size in shape:
    if product * size <= largest:
      product *= size
      continue
    if product > 1:
      merged.append(product)
    product = size
  if product > 1:
    merged.append(product)
  return tuple(merged)


@dataclasses.dataclass(frozen=True)
class Blocks:
  """How a tensor of one shape is cut, and put together again."""

  # The tensor's own shape, and the shape in which it is cut.
  shape: tuple[int, ...]
  merged: tuple[int, ...]
  # Largest size of a block in any dimension; 0: nothing is cut.
  block_size: int

  @property
  def sizes(self) -> list[tuple[int, ...]]:
    """The shape of each block, the last dimension's blocks fastest."""
    return list(itertools.product(*map(self._pieces, self.merged)))

  def split(self, x: Float[Array, ...]) -> list[Float[Array, ...]]:
    """Returns the blocks of a tensor, in the order of `sizes`."""
    blocks = [jnp.reshape(x, self.merged)]
    for axis, size in enumerate(self.merged):
      cuts = list(itertools.accumulate(self._pieces(size)))[:-1]
      blocks = [
        part for block in blocks for part in jnp.split(block, cuts, axis)
      ]
    return blocks

  def join(self, blocks: Sequence[Float[Array, ...]]) -> Float[Array, ...]:
    """Returns the tensor of which these are the blocks."""
    blocks = list(blocks)
    for axis in reversed(range(len(self.merged))):
      n = len(self._pieces(self.merged[axis]))
      blocks = [
        jnp.concatenate(blocks[i : i + n], axis)
        for i in range(0, len(blocks), n)
      ]
    (whole,) = blocks
    return jnp.reshape(whole, self.shape)

  def _pieces(self, size: int) -> list[int]:
    if not 0 < self.block_size < size:
      return [size]
    whole, rest = divmod(size, self.block_size)
    return [self.block_size] * whole + [rest] * bool(rest)
