# SPDX-License-Identifier: Apache-2.0
"""Shapes of scales, and of weights split into blocks or sub-channels.

References:
  A study of sub-channel quantization, https://arxiv.org/abs/2305.16619
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import logging


def get_scale_shape(
  weight_shape: Sequence[int], contract_dims: Sequence[int]
) -> list[int]:
  """Returns the sizes of the uncontracted dimensions of a weight."""
  return [n for i, n in enumerate(weight_shape) if i not in contract_dims]


def block_dim(
  shape: Sequence[int], block_size: int, contract_dims: Sequence[int]
) -> int | None:
  """Returns the dimension that is split into blocks: the largest contracted.

  Returns None if `block_size` is 0, the size of that dimension, or not a
  divisor of it.
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
  """Splits the largest contracted dimension of a shape into blocks.

  Args:
    shape: the shape of the weight.
    block_size: number of elements with a common scale; 0: no blocks.
    contract_dims: the contracted dimensions.
    insert_sub_channel: whether the number of blocks becomes a new dimension
      before the block's; otherwise it multiplies the first uncontracted one.
    error_on_misaligned_shape: whether a size that is not a multiple of the
      block size is an error; otherwise the shape is not split.

  Returns:
    The shape and its contracted dimensions.

  Raises:
    ValueError: the shape is misaligned and that is an error.
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
  """Moves sub-channels from the largest contracted dimension to another.

  The contracted dimension is halved and the first uncontracted one doubled,
  until there are `sub_channels` parts, or a part is odd or would be smaller
  than `min_sub_channel_size`.

  Raises:
    ValueError: there are more sub-channels than contracted elements.
  """
  shape = list(inputs_shape)
  dim = max(contract_dims, key=lambda i: shape[i])
  if shape[dim] < sub_channels:
    raise ValueError(
      f'sub_channels must be at most {shape[dim]}, the largest contracted '
      f'dimension of shape {shape}, got {sub_channels}'
    )
  first = next(i for i in range(len(shape)) if i not in contract_dims)
  parts: float = sub_channels
  while parts > 1 and shape[dim] % 2 == 0:
    if shape[dim] // 2 < min_sub_channel_size:
      break
    shape[dim] //= 2
    shape[first] *= 2
    parts /= 2
  return shape
