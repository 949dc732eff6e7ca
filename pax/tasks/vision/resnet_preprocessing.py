# SPDX-License-Identifier: Apache-2.0
"""Image preprocessing for ResNets: random crops for training, or center crops.

Pixel values stay in 0 to 255: the first batch normalization of the network
removes mean and scale. Images are resized by bicubic interpolation, antialiased
when they shrink.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from jaxtyping import Float, Num, UInt8
from PIL import Image

IMAGE_SIZE = 224
# Fraction of the shorter side in a center crop.
CROP_FRACTION = 0.875

# The bounding box of a whole image.
_FULL_BOX = np.array([[[0.0, 0.0, 1.0, 1.0]]])


class Crop(NamedTuple):
  """A rectangle of an image, in pixels."""

  top: int
  left: int
  height: int
  width: int


class CropRanges(NamedTuple):
  """Ranges of random crops."""

  # Width divided by height, uniformly distributed.
  aspect_ratio: tuple[float, float]
  # Fraction of the image.
  area: tuple[float, float]


def preprocess_image(
  image_bytes: bytes,
  is_training: bool = False,
  use_bfloat16: bool = False,
  image_size: int = IMAGE_SIZE,
  *,
  rng: np.random.Generator | None = None,
) -> Num[np.ndarray, 'S S 3']:
  """Returns a square crop of an image, random in training.

  Args:
    image_bytes: The image file.
    is_training: Whether to crop and flip at random; else a center crop.
    use_bfloat16: Whether to return bfloat16 instead of float32.
    image_size: Height and width S of the result.
    rng: The random generator; None creates one.
  """
  if is_training:
    return preprocess_for_train(image_bytes, use_bfloat16, image_size, rng=rng)
  return preprocess_for_eval(image_bytes, use_bfloat16, image_size)


def preprocess_for_train(
  image_bytes: bytes,
  use_bfloat16: bool,
  image_size: int = IMAGE_SIZE,
  *,
  rng: np.random.Generator | None = None,
) -> Num[np.ndarray, 'S S 3']:
  """Returns a random crop, flipped horizontally with probability 1/2.

  The crop has at least 8 % of the image's area and an aspect ratio of 3:4 to
  4:3. If ten attempts fail, it is the center crop.

  Args:
    image_bytes: The image file.
    use_bfloat16: Whether to return bfloat16 instead of float32.
    image_size: Height and width S of the result.
    rng: The random generator; None creates one.

  References:
    Szegedy et al., Going deeper with convolutions, arXiv:1409.4842, section 6.
  """
  rng = rng or np.random.default_rng()
  image = _decode(image_bytes)
  ranges = CropRanges(aspect_ratio=(3 / 4, 4 / 3), area=(0.08, 1.0))
  crop = _random_crop(
    image, _FULL_BOX, 0.1, ranges=ranges, max_attempts=10, rng=rng
  )
  pixels = _resize(image, crop or _center_crop(image, image_size), image_size)
  if rng.random() < 0.5:
    pixels = pixels[:, ::-1]
  return _to_float(pixels, use_bfloat16)


def preprocess_for_eval(
  image_bytes: bytes, use_bfloat16: bool, image_size: int = IMAGE_SIZE
) -> Num[np.ndarray, 'S S 3']:
  """Returns the center crop of an image."""
  image = _decode(image_bytes)
  pixels = _resize(image, _center_crop(image, image_size), image_size)
  return _to_float(pixels, use_bfloat16)


def distorted_bounding_box_crop(
  image_bytes: bytes,
  bbox: Float[np.ndarray, '1 N 4'],
  min_object_covered: float = 0.1,
  aspect_ratio_range: Sequence[float] = (0.75, 1.33),
  area_range: Sequence[float] = (0.05, 1.0),
  max_attempts: int = 100,
  *,
  rng: np.random.Generator | None = None,
) -> UInt8[np.ndarray, 'H W 3']:
  """Returns a random crop that covers enough of some bounding box.

  Args:
    image_bytes: The image file.
    bbox: Boxes (top, left, bottom, right) from 0 to 1; without boxes, the whole
      image is the box.
    min_object_covered: Minimum fraction of some box inside the crop.
    aspect_ratio_range: Range of the width divided by the height of the crop.
    area_range: Range of the fraction of the image inside the crop.
    max_attempts: Number of attempts before the whole image is returned.
    rng: The random generator; None creates one.
  """
  image = _decode(image_bytes)
  min_ratio, max_ratio = aspect_ratio_range
  min_area, max_area = area_range
  ranges = CropRanges((min_ratio, max_ratio), (min_area, max_area))
  crop = _random_crop(
    image,
    bbox,
    min_object_covered,
    ranges=ranges,
    max_attempts=max_attempts,
    rng=rng or np.random.default_rng(),
  )
  pixels = np.asarray(image)
  if crop is None:
    return pixels
  rows = slice(crop.top, crop.top + crop.height)
  return pixels[rows, crop.left : crop.left + crop.width]


def _decode(image_bytes: bytes) -> Image.Image:
  try:
    return Image.open(io.BytesIO(image_bytes)).convert('RGB')
  except OSError as e:
    raise ValueError(
      'an image must be a whole JPEG file, or another format of Pillow, got '
      f'{len(image_bytes)} bytes that Pillow cannot decode: {e}'
    ) from e


def _resize(
  image: Image.Image, crop: Crop, size: int
) -> UInt8[np.ndarray, 'S S 3']:
  top, left, height, width = crop
  cropped = image.crop((left, top, left + width, top + height))
  return np.asarray(cropped.resize((size, size), Image.Resampling.BICUBIC))


def _to_float(pixels: np.ndarray, use_bfloat16: bool) -> np.ndarray:
  dtype: Any = ml_dtypes.bfloat16 if use_bfloat16 else np.float32
  return pixels.astype(dtype)


def _center_crop(image: Image.Image, size: int) -> Crop:
  """Returns the square of CROP_FRACTION of the shorter side."""
  border = round(size * (1 / CROP_FRACTION - 1))
  side = int(size / (size + border) * min(image.size))
  width, height = image.size
  return Crop((height - side + 1) // 2, (width - side + 1) // 2, side, side)


def _random_crop(
  image: Image.Image,
  boxes: np.ndarray,
  min_covered: float,
  *,
  ranges: CropRanges,
  max_attempts: int,
  rng: np.random.Generator,
) -> Crop | None:
  """Returns a crop with `min_covered` of some box; None if attempts fail."""
  width, height = image.size
  boxes = np.reshape(boxes, (-1, 4)) if np.size(boxes) else _FULL_BOX[0]
  boxes = boxes * [height, width, height, width]
  for _ in range(max_attempts):
    crop = _sample_crop(width, height, ranges, rng)
    if crop and _max_coverage(crop, boxes) >= min_covered:
      return crop
  return None


def _sample_crop(
  width: int, height: int, ranges: CropRanges, rng: np.random.Generator
) -> Crop | None:
  """Samples a crop as TensorFlow does; returns None if it does not fit.

  The aspect ratio is uniform. The height is uniform between those of the
  smallest and the largest area with this aspect ratio.
  """
  aspect_ratio = rng.uniform(*ranges.aspect_ratio)
  min_area, max_area = (fraction * width * height for fraction in ranges.area)
  max_rows = min(
    round(math.sqrt(max_area / aspect_ratio)),
    int((width + 0.5) / aspect_ratio),
    height,
  )
  min_rows = min(round(math.sqrt(min_area / aspect_ratio)), max_rows)
  rows = int(rng.integers(min_rows, max_rows + 1))
  columns = round(rows * aspect_ratio)
  fits = 0 < columns <= width and 0 < rows
  if not fits or not min_area <= rows * columns <= max_area:
    return None
  top = int(rng.integers(height - rows + 1))
  left = int(rng.integers(width - columns + 1))
  return Crop(top, left, rows, columns)


def _max_coverage(crop: Crop, boxes: np.ndarray) -> float:
  """Returns the largest fraction of a box [N, 4] inside the crop."""
  top, left, bottom, right = boxes.T
  crop_bottom, crop_right = crop.top + crop.height, crop.left + crop.width
  rows = np.minimum(bottom, crop_bottom) - np.maximum(top, crop.top)
  columns = np.minimum(right, crop_right) - np.maximum(left, crop.left)
  box_areas = np.maximum((bottom - top) * (right - left), 1e-9)
  covered_areas = np.maximum(rows, 0) * np.maximum(columns, 0)
  return float(np.max(covered_areas / box_areas))
