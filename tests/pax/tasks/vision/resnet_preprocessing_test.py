# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Position, size and content of crops."""

from __future__ import annotations

import io

import ml_dtypes
import numpy as np
import pytest
from PIL import Image

from pax.tasks.vision import resnet_preprocessing as preprocessing
from tests.pax.tasks.vision import jpegs


def _ramp(height: int, width: int) -> np.ndarray:
  """Red encodes the row, green the column."""
  rows, columns = np.mgrid[:height, :width]
  return np.stack([rows, columns, np.full_like(rows, 90)], -1)


def _file(pixels: np.ndarray) -> bytes:
  """A file without loss."""
  out = io.BytesIO()
  Image.fromarray(pixels.astype(np.uint8)).save(out, 'PNG')
  return out.getvalue()


def test_evaluation_takes_the_middle():
  # A border of an eighth of the side of the middle: 140 = 0.875 * 160.
  image = _file(_ramp(160, 200))
  found = preprocessing.preprocess_image(image, image_size=140)
  assert found.dtype == np.float32 and found.shape == (140, 140, 3)
  wanted = _ramp(160, 200)[10:150, 30:170]
  np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
  ('size', 'image_size', 'side'), [((224, 300), 224, 196), ((50, 40), 32, 34)]
)
def test_the_middle_is_resized(size, image_size, side):
  found = preprocessing.preprocess_for_eval(
    _file(_ramp(*size)), False, image_size
  )
  top = (size[0] - side + 1) // 2
  # Pixel centers, from one grid to the other.
  rows = top + (np.arange(image_size) + 0.5) * side / image_size - 0.5
  np.testing.assert_allclose(found[2:-2, 5, 0], rows[2:-2], atol=1)


def test_training_takes_parts_of_all_kinds():
  image = _file(_ramp(120, 200))
  rng = np.random.default_rng(0)
  shares, ratios, mirrored = [], [], 0
  for _ in range(300):
    found = preprocessing.preprocess_image(image, True, image_size=64, rng=rng)
    # Slopes of the ramps, from pixel to pixel.
    down = np.polyfit(np.arange(56), found[4:-4, 32, 0], 1)[0]
    right = np.polyfit(np.arange(56), found[32, 4:-4, 1], 1)[0]
    height, width = 64 * down, 64 * abs(right)
    shares.append(height * width / (120 * 200))
    ratios.append(width / height)
    mirrored += right < 0
  # A tenth of the image must be seen.
  assert 0.09 < min(shares) < 0.2 and 0.65 < max(shares) < 0.85
  assert 0.72 < min(ratios) < 0.8 and 1.25 < max(ratios) < 1.37
  assert 120 < mirrored < 180


def test_the_same_draws_give_the_same_part():
  image = jpegs.colored(1)
  first, again, other = (
    preprocessing.preprocess_for_train(
      image, False, 16, rng=np.random.default_rng(seed)
    )
    for seed in (3, 3, 4)
  )
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other)


def test_an_image_without_a_fitting_part_gives_its_middle():
  # No part of sides of 3:4 has a tenth of it.
  image = _file(_ramp(16, 250))
  trained = preprocessing.preprocess_for_train(
    image, False, 14, rng=np.random.default_rng(0)
  )
  middle = preprocessing.preprocess_for_eval(image, False, 14)
  assert any(np.array_equal(trained, x) for x in (middle, middle[:, ::-1]))


def test_a_part_shows_enough_of_a_box():
  image = _file(_ramp(100, 100))
  box = np.array([[[0.6, 0.7, 1.0, 1.0]]])
  rng = np.random.default_rng(0)
  for _ in range(50):
    found = preprocessing.distorted_bounding_box_crop(
      image, box, min_object_covered=0.9, rng=rng
    ).astype(float)
    first, last = found[0, 0], found[-1, -1]
    rows = min(last[0], 99) - max(first[0], 60) + 1
    columns = min(last[1], 99) - max(first[1], 70) + 1
    assert rows * columns / (40 * 30) >= 0.9
  whole = preprocessing.distorted_bounding_box_crop(
    image, box, min_object_covered=1.5, rng=rng
  )
  assert whole.shape == (100, 100, 3)


def test_half_precision():
  found = preprocessing.preprocess_image(
    jpegs.colored(0), use_bfloat16=True, image_size=8
  )
  assert found.dtype == ml_dtypes.bfloat16


def test_grey_images_have_three_channels():
  grey = _file(_ramp(20, 20)[..., 0])
  found = preprocessing.preprocess_image(grey, image_size=8)
  assert found.shape == (8, 8, 3)
  np.testing.assert_array_equal(found[..., 0], found[..., 2])


@pytest.mark.parametrize('data', [b'', b'text', jpegs.colored(0)[:200]])
def test_what_is_no_image_is_refused(data):
  with pytest.raises(ValueError, match='whole JPEG'):
    preprocessing.preprocess_image(data)
