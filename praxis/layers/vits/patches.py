# SPDX-License-Identifier: Apache-2.0
"""Conversion of images to patches; interpolation of position embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jaxtyping import Array, Float, Num


def patch_grid(height: int, width: int, patch_size: int) -> tuple[int, int]:
  """Returns the rows and columns of patches of an image.

  Raises:
    ValueError: `patch_size` does not divide height and width.
  """
  if patch_size <= 0 or height % patch_size or width % patch_size:
    raise ValueError(
      f'height {height} and width {width} of images must be multiples of '
      f'patch_size, got patch_size {patch_size}; resize the images'
    )
  return height // patch_size, width // patch_size


def image_to_patch(
  img: Num[Array, 'B H W C'], patch_size: int
) -> Num[Array, 'B N P']:
  """Returns the patches in row-major order; P is (rows, columns, channels).

  Raises:
    ValueError: `img` is not of rank 4, or `patch_size` does not divide its
      height and width.
  """
  if img.ndim != 4:
    raise ValueError(f'images must be [B, H, W, C], got shape {img.shape}')
  batch, height, width, channels = img.shape
  rows, columns = patch_grid(height, width, patch_size)
  tiles = img.reshape(batch, rows, patch_size, columns, patch_size, channels)
  tiles = tiles.swapaxes(2, 3)
  return tiles.reshape(batch, rows * columns, patch_size**2 * channels)


def patch_to_image(
  patches: Num[Array, 'B N P'], img_shape: Sequence[int], patch_size: int
) -> Num[Array, 'B H W C']:
  """Inverts `image_to_patch` for images of shape `img_shape`.

  Raises:
    ValueError: `img_shape` is not of rank 4, or `patch_size` does not divide
      its height and width.
  """
  if len(img_shape) != 4:
    raise ValueError(f'img_shape must be [B, H, W, C], got {img_shape}')
  _, height, width, channels = img_shape
  rows, columns = patch_grid(height, width, patch_size)
  tiles = patches.reshape(
    -1, rows, columns, patch_size, patch_size, channels
  ).swapaxes(2, 3)
  return tiles.reshape(-1, height, width, channels)


def interpolate_embedding_2d(
  emb: Float[Array, '1 N D'],
  source_emb_shape: Sequence[int],
  target_emb_shape: Sequence[int],
) -> Float[Array, '1 M D']:
  """Interpolates position embeddings bilinearly to another grid of patches.

  References: ViT, https://arxiv.org/abs/2010.11929, section 3.2

  Raises:
    ValueError: the shape of `emb` does not match `source_emb_shape`.
  """
  rows, columns = source_emb_shape
  if emb.ndim != 3 or emb.shape[:2] != (1, rows * columns):
    raise ValueError(
      f'emb must be [1, {rows * columns}, D] for a grid of {rows} x {columns} '
      f'positions, got shape {emb.shape}'
    )
  dims = emb.shape[-1]
  grid = emb.reshape(rows, columns, dims)
  resized = jax.image.resize(grid, (*target_emb_shape, dims), 'bilinear')
  return resized.reshape(1, -1, dims)
