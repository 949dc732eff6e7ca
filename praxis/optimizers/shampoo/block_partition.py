# SPDX-License-Identifier: Apache-2.0
"""Partition of tensors into blocks: merged small, split large dimensions."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float


def merge_small_dims(shape: Sequence[int], largest: int) -> tuple[int, ...]:
  """Merges adjacent dimensions while their product is at most `largest`.

  Dimensions of size 1 vanish: [1, 2, 512, 1, 2048, 1, 3, 4] with 1024 becomes
  [1024, 2048, 12]. A shape of only ones becomes [1].
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
class BlockPartition:
  """Splits tensors of one shape into blocks, and joins them."""

  # The shape of the tensor, and its shape with merged dimensions.
  shape: tuple[int, ...]
  merged: tuple[int, ...]
  # Maximum size of a block in any dimension; 0: one block.
  block_size: int

  @property
  def sizes(self) -> list[tuple[int, ...]]:
    """The shape of each block, in row-major order of the blocks."""
    return list(itertools.product(*map(self._block_sizes, self.merged)))

  def split(self, x: Float[Array, ...]) -> list[Float[Array, ...]]:
    """Returns the blocks of a tensor, in the order of `sizes`."""
    blocks = [jnp.reshape(x, self.merged)]
    for axis, size in enumerate(self.merged):
      boundaries = list(itertools.accumulate(self._block_sizes(size)))[:-1]
      blocks = [
        part for block in blocks for part in jnp.split(block, boundaries, axis)
      ]
    return blocks

  def join(self, blocks: Sequence[Float[Array, ...]]) -> Float[Array, ...]:
    """Returns the tensor with these blocks."""
    blocks = list(blocks)
    for axis in reversed(range(len(self.merged))):
      n = len(self._block_sizes(self.merged[axis]))
      blocks = [
        jnp.concatenate(blocks[i : i + n], axis)
        for i in range(0, len(blocks), n)
      ]
    (tensor,) = blocks
    return jnp.reshape(tensor, self.shape)

  def _block_sizes(self, size: int) -> list[int]:
    if not 0 < self.block_size < size:
      return [size]
    num_blocks, remainder = divmod(size, self.block_size)
    sizes = [self.block_size] * num_blocks
    return [*sizes, remainder] if remainder else sizes
