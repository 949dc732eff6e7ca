# SPDX-License-Identifier: Apache-2.0
"""Shapes of scales, and of weights whose contraction is split in blocks.

References:
  A study of sub-channel quantisation, https://arxiv.org/abs/2305.16619
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import logging


def get_scale_shape(
  weight_shape: Sequence[int], contract_dims: Sequence[int]
) -> list[int]:
  """Returns the dimensions of a weight that are not contracted."""
  return [n for i, n in enumerate(weight_shape) if i not in contract_dims]


def block_dim(
  shape: Sequence[int], block_size: int, contract_dims: Sequence[int]
) -> int | None:
  """Returns the dimension that is split in blocks: the largest contracted.

  None if blocks are off, or as large as that dimension, or do not divide it.
  """
  if block_size <= 0:
    return None
  dim = max(contract_dims, key=lambda i: shape[i])
  if block_size < shape[dim] and shape[dim] % block_size == 0:
    return dim
  if block_size == shape[dim]:
    return None
  logging.warning(
    'block_size %d does not divide dimension %d of shape %s: no blocks',
    block_size,
    dim,
    list(shape),
  )
  return None


def get_sub_channel_shape(
  shape: Sequence[int],
  block_size: int,
  contract_dims: Sequence[int],
  insert_sub_channel: bool = True,
  error_on_misaligned_shape: bool = False,
) -> tuple[list[int], list[int]]:
  """Returns a shape whose largest contracted dimension is split in blocks.

  Args:
    shape: of the weight.
    block_size: how many entries share a scale; 0 leaves the shape.
    contract_dims: dimensions that are contracted.
    insert_sub_channel: whether the number of blocks is a dimension before that
      of the block, or a factor of the first dimension that is not contracted.
    error_on_misaligned_shape: whether a size that is no multiple of the block
      is an error; if not, the shape is left.

  Returns:
    The shape and its contracted dimensions.
  """
  new_shape, new_dims = list(shape), list(contract_dims)
  if error_on_misaligned_shape and block_size > 0:
    size = max(shape[i] for i in contract_dims)
    if block_size < size and size % block_size:
      raise ValueError(
        f'block_size must divide {size}, the largest contracted dimension of '
        f'shape {list(shape)}, got {block_size}'
      )
  dim = block_dim(shape, block_size, contract_dims)
  if dim is None:
    return new_shape, new_dims
  blocks = shape[dim] // block_size
  new_shape[dim] = block_size
  if insert_sub_channel:
    new_shape.insert(dim, blocks)
    return new_shape, [i + 1 if i >= dim else i for i in contract_dims]
  first = next(i for i in range(len(shape)) if i not in contract_dims)
  new_shape[first] *= blocks
  return new_shape, new_dims


def compute_shape_with_subchannels(
  sub_channels: int,
  inputs_shape: Sequence[int],
  contract_dims: Sequence[int],
  min_sub_channel_size: int = -1,
) -> list[int]:
  """Returns a shape whose largest contracted dimension is halved repeatedly.

  Each half doubles the first dimension that is not contracted, until there are
  `sub_channels` parts, or a part is odd or would be smaller than
  `min_sub_channel_size`.
  """
  shape = list(inputs_shape)
  dim = max(contract_dims, key=lambda i: shape[i])
  if shape[dim] < sub_channels:
    raise ValueError(
      f'sub_channels must be at most {shape[dim]}, the largest contracted '
      f'dimension of shape {shape}, got {sub_channels}'
    )
  first = next(i for i in range(len(shape)) if i not in contract_dims)
  parts = sub_channels
  while parts > 1 and shape[dim] % 2 == 0:
    if shape[dim] // 2 < min_sub_channel_size:
      break
    shape[dim] //= 2
    shape[first] *= 2
    parts /= 2
  return shape
