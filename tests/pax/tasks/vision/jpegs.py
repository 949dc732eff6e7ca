# SPDX-License-Identifier: Apache-2.0
"""JPEG files whose color is a function of their class, in TFRecord files."""

from __future__ import annotations

import io
import pathlib

import numpy as np
from PIL import Image

from pax.files import tf_records

# Colors of the classes.
COLORS = np.array([[220, 40, 40], [40, 200, 40], [40, 40, 220], [200] * 3])
_FILES = 2


def jpeg(pixels: np.ndarray) -> bytes:
  """Returns a JPEG file of the best quality."""
  out = io.BytesIO()
  Image.fromarray(pixels.astype(np.uint8)).save(
    out, 'JPEG', quality=100, subsampling=0
  )
  return out.getvalue()


def colored(label: int, seed: int = 0) -> bytes:
  """Returns an image of a class with random size and noise."""
  rng = np.random.default_rng((label, seed))
  height, width = rng.integers(24, 40, 2)
  noise = rng.normal(0, 12, (height, width, 3))
  return jpeg((COLORS[label] + noise).clip(0, 255))


def write(folder: pathlib.Path, prefix: str, count: int) -> None:
  """Writes `count` images of alternating classes to two files."""
  for i in range(_FILES):
    path = folder / f'{prefix}-{i:05d}-of-{_FILES:05d}'
    with path.open('wb') as file:
      tf_records.write(file, map(record, range(i, count, _FILES)))


def record(seed: int) -> bytes:
  """Returns the record of an image; labels start at 1."""
  label = seed % len(COLORS)
  encoded = np.array([colored(label, seed)], 'O')
  return tf_records.example(
    {'image/encoded': encoded, 'image/class/label': np.int64([label + 1])}
  )
