# SPDX-License-Identifier: Apache-2.0
"""Matrices in FP8 with a scale for each block, as DeepSeek-V3 is published.

A matrix [O, I] of float8_e4m3fn has a matrix `*_scale_inv` of float32 with a
factor for each block of `weight_block_size` of config.json, 128 x 128.

References: DeepSeek-V3, arXiv:2412.19437, section 3.3.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np

from pax.huggingface.safetensors import TensorEntry

_SCALES = '_scale_inv'
# That of DeepSeek's conversion.
_DTYPE = np.dtype(ml_dtypes.bfloat16)


@dataclasses.dataclass(frozen=True)
class ScaledEntry:
  """A matrix by its FP8 values and the scales of its blocks."""

  values: TensorEntry
  scales: TensorEntry
  # Rows and columns of a block.
  block: tuple[int, int]

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of the matrix."""
    return self.values.shape

  @property
  def dtype(self) -> np.dtype:
    """Dtype of what is read."""
    return _DTYPE

  @property
  def file(self) -> pathlib.Path:
    """The file of the values."""
    return self.values.file

  @property
  def num_bytes(self) -> int:
    """Size in the file."""
    return self.values.num_bytes + self.scales.num_bytes

  def read(self) -> np.ndarray:
    """Returns the matrix, rounded to bfloat16."""
    return self.memory_map()

  def memory_map(self) -> np.ndarray:
    """Returns the same as `read`."""
    values = self.values.memory_map()
    scales = np.asarray(self.scales.memory_map())
    columns = np.arange(self.shape[1]) // self.block[1]
    matrix = np.empty(self.shape, _DTYPE)
    # The float32 values of one row of blocks are in memory at a time.
    for i, row_scales in enumerate(scales):
      rows = slice(i * self.block[0], (i + 1) * self.block[0])
      matrix[rows] = values[rows].astype(np.float32) * row_scales[columns]
    return matrix


def unpack(
  entries: Mapping[str, TensorEntry], block: Sequence[int]
) -> dict[str, TensorEntry | ScaledEntry]:
  """Returns the entries with one for each pair of values and scales.

  Args:
    entries: All tensors by name.
    block: `weight_block_size`.

  Raises:
    ValueError: Shapes or dtypes of a pair do not fit.
  """
  if len(block) != 2 or min(block) < 1:
    raise ValueError(
      'weight_block_size in config.json must be two positive numbers, got'
      f' {list(block)}; copy the file of the model again'
    )
  unpacked: dict[str, TensorEntry | ScaledEntry] = {}
  for name, entry in entries.items():
    if name.removesuffix(_SCALES) in entries and name.endswith(_SCALES):
      continue
    scales = entries.get(f'{name}{_SCALES}')
    if scales is None:
      unpacked[name] = entry
      continue
    _check_pair(name, entry, scales, block)
    unpacked[name] = ScaledEntry(entry, scales, (block[0], block[1]))
  return unpacked


def _check_pair(
  name: str, values: TensorEntry, scales: TensorEntry, block: Sequence[int]
) -> None:
  blocks = tuple(
    -(-size // step) for size, step in zip(values.shape, block, strict=False)
  )
  dtypes = values.dtype, scales.dtype
  wanted = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(np.float32)
  if len(values.shape) != 2 or scales.shape != blocks or dtypes != wanted:
    raise ValueError(
      f'{name} in {values.file} must be a matrix of float8_e4m3fn with float32'
      f' {_SCALES[1:]} {list(blocks)}, got {values.dtype}'
      f' {list(values.shape)} and {scales.dtype} {list(scales.shape)}; copy the'
      ' files of the model again'
    )
