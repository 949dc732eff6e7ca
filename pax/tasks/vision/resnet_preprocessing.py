# SPDX-License-Identifier: Apache-2.0
"""How ResNets see an image: a random part of it, or its middle, as a square.

Values are those of the file, 0 to 255: the first normalisation of the network
takes scale and mean away. Sizes change by bicubic interpolation; where they
shrink, all pixels count, not only those next to a grid.
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
# How much of the shorter side the middle part takes.
CROP_FRACTION = 0.875

_WHOLE = np.array([[[0.0, 0.0, 1.0, 1.0]]])


class Crop(NamedTuple):
  """A part of an image, in pixels."""

  top: int
  left: int
  height: int
  width: int


class CropRanges(NamedTuple):
  """What random parts may be like."""

  # Width by height, drawn evenly.
  aspect_ratio: tuple[float, float]
  # Share of the image.
  area: tuple[float, float]


def preprocess_image(
  image_bytes: bytes,
  is_training: bool = False,
  use_bfloat16: bool = False,
  image_size: int = IMAGE_SIZE,
  *,
  rng: np.random.Generator | None = None,
) -> Num[np.ndarray, 'S S 3']:
  """Returns a square image; in training a random part, perhaps mirrored."""
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
  """Returns a random part of an image, mirrored half of the time.

  A part has 8 % of the image or more, and sides of 3:4 to 4:3; where ten draws
  give none, it is the middle. `rng` draws; without one, each call differs.

  References:
    Szegedy et al., Going deeper with convolutions, arXiv:1409.4842, section 6.
  """
  rng = rng or np.random.default_rng()
  image = _decode(image_bytes)
  ranges = CropRanges(aspect_ratio=(3 / 4, 4 / 3), area=(0.08, 1.0))
  crop = _random_crop(
    image, _WHOLE, 0.1, ranges=ranges, max_attempts=10, rng=rng
  )
  square = _resized(image, crop or _middle(image, image_size), image_size)
  if rng.random() < 0.5:
    square = square[:, ::-1]
  return _as_float(square, use_bfloat16)


def preprocess_for_eval(
  image_bytes: bytes, use_bfloat16: bool, image_size: int = IMAGE_SIZE
) -> Num[np.ndarray, 'S S 3']:
  """Returns the middle of an image."""
  image = _decode(image_bytes)
  square = _resized(image, _middle(image, image_size), image_size)
  return _as_float(square, use_bfloat16)


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
  """Returns a random part of an image that shows enough of some object.

  Args:
    image_bytes: the image file.
    bbox: the objects' top, left, bottom and right, from 0 to 1; if there are
      none, the whole image is the object.
    min_object_covered: the share of an object that must be seen.
    aspect_ratio_range: width by height of the part.
    area_range: its share of the image.
    max_attempts: draws, after which it is the whole image.
    rng: draws; without one, each call differs.
  """
  image = _decode(image_bytes)
  ranges = CropRanges(tuple(aspect_ratio_range), tuple(area_range))
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
      f'an image must be a whole JPEG file, or another that Pillow reads, got '
      f'{len(image_bytes)} bytes that it does not: {e}'
    ) from e


def _resized(
  image: Image.Image, crop: Crop, size: int
) -> UInt8[np.ndarray, 'S S 3']:
  top, left, height, width = crop
  part = image.crop((left, top, left + width, top + height))
  return np.asarray(part.resize((size, size), Image.Resampling.BICUBIC))


def _as_float(square: np.ndarray, use_bfloat16: bool) -> np.ndarray:
  dtype: Any = ml_dtypes.bfloat16 if use_bfloat16 else np.float32
  return square.astype(dtype)


def _middle(image: Image.Image, size: int) -> Crop:
  """The square in the middle, with a border of an eighth of its side."""
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
  """A part that shows the share `min_covered` of some box; None: none found."""
  width, height = image.size
  boxes = np.reshape(boxes, (-1, 4)) if np.size(boxes) else _WHOLE[0]
  boxes = boxes * [height, width, height, width]
  for _ in range(max_attempts):
    crop = _draw(width, height, ranges, rng)
    if crop and _covered(crop, boxes) >= min_covered:
      return crop
  return None


def _draw(
  width: int, height: int, ranges: CropRanges, rng: np.random.Generator
) -> Crop | None:
  """A part of an image, drawn as TensorFlow does; None if it does not fit.

  The height is drawn evenly, between those that make the smallest and the
  largest area of the drawn aspect ratio.
  """
  aspect = rng.uniform(*ranges.aspect_ratio)
  low, high = (share * width * height for share in ranges.area)
  tallest = min(
    round(math.sqrt(high / aspect)), int((width + 0.5) / aspect), height
  )
  shortest = min(round(math.sqrt(low / aspect)), tallest)
  rows = int(rng.integers(shortest, tallest + 1))
  columns = round(rows * aspect)
  fits = 0 < columns <= width and 0 < rows
  if not fits or not low <= rows * columns <= high:
    return None
  top = int(rng.integers(height - rows + 1))
  left = int(rng.integers(width - columns + 1))
  return Crop(top, left, rows, columns)


def _covered(crop: Crop, boxes: np.ndarray) -> float:
  """The largest share of a box that the part shows."""
  top, left, bottom, right = boxes.T
  seen = np.minimum(bottom, crop.top + crop.height) - np.maximum(top, crop.top)
  across = np.minimum(right, crop.left + crop.width)
  across = across - np.maximum(left, crop.left)
  area = np.maximum((bottom - top) * (right - left), 1e-9)
  return float(np.max(np.maximum(seen, 0) * np.maximum(across, 0) / area))
