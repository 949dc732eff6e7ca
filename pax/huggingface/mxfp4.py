# SPDX-License-Identifier: Apache-2.0
"""Tensors in MXFP4, as gpt-oss publishes those of experts.

A tensor [E, I, O] is stored as two, with the rows of inputs last:
`*_blocks` [E, O, I / 32, 16] has two values per byte, the first in the low
bits, and `*_scales` [E, O, I / 32] the exponent of each 32 values, plus 127.

References: OCP Microscaling Formats (MX) Specification 1.0, sections 5.3.3
(E2M1) and 5.4.1 (E8M0).
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from pax.huggingface.safetensors import TensorEntry

_BLOCKS, _SCALES = '_blocks', '_scales'
# Values with the same scale.
_BLOCK_SIZE = 32
_BIAS = 127
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_DTYPE = np.dtype(ml_dtypes.bfloat16)


@dataclasses.dataclass(frozen=True)
class PackedEntry:
  """A tensor [E, I, O] by its blocks and scales."""

  blocks: TensorEntry
  scales: TensorEntry

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of the tensor."""
    experts, outputs, num_blocks, _ = self.blocks.shape
    return experts, num_blocks * _BLOCK_SIZE, outputs

  @property
  def dtype(self) -> np.dtype:
    """One that has its values without rounding."""
    return _DTYPE

  @property
  def file(self) -> pathlib.Path:
    """The file of the blocks."""
    return self.blocks.file

  @property
  def num_bytes(self) -> int:
    """Size in the file."""
    return self.blocks.num_bytes + self.scales.num_bytes

  def read(self) -> Any:
    """Returns the tensor, a LazyTensor."""
    return self.memory_map()

  def memory_map(self) -> Any:
    """Returns the same as `read`."""
    blocks, scales = self.blocks.memory_map(), self.scales.memory_map()

    def values(expert: slice, inputs: slice, outputs: slice) -> np.ndarray:
      first, last = inputs.start // _BLOCK_SIZE, -(-inputs.stop // _BLOCK_SIZE)
      index = expert, outputs, slice(first, last)
      found = _dequantize(blocks[index], scales[index])
      offset = first * _BLOCK_SIZE
      rows = slice(inputs.start - offset, inputs.stop - offset, inputs.step)
      return np.swapaxes(found[..., rows], 1, 2)

    return LazyTensor.of(self.shape, _DTYPE, values)


@dataclasses.dataclass(frozen=True)
class LazyTensor:
  """A part of a tensor in another order, computed by `np.asarray`."""

  dtype: np.dtype
  # Of each dimension of the tensor, the index of every element; a view of one
  # vector.
  indices: tuple[np.ndarray, ...]
  # Returns the values of an index of slices.
  values: Callable[..., np.ndarray]

  @classmethod
  def of(
    cls,
    shape: tuple[int, ...],
    dtype: np.dtype,
    values: Callable[..., np.ndarray],
  ) -> LazyTensor:
    """Returns the whole tensor.

    Args:
      shape: Its shape.
      dtype: Its dtype.
      values: Returns the values of an index, one slice for each dimension.
    """
    vectors = np.ix_(*map(np.arange, shape))
    views = tuple(np.broadcast_to(x, shape) for x in vectors)
    return cls(dtype, views, values)

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of the part."""
    return self.indices[0].shape

  def reshape(self, shape: tuple[int, ...]) -> LazyTensor:
    """Returns the same with split dimensions, or without those of size 1."""
    return self._map(lambda x: x.reshape(shape))

  def transpose(self, axes: tuple[int, ...]) -> LazyTensor:
    """Returns the same with permuted dimensions."""
    return self._map(lambda x: x.transpose(axes))

  def __getitem__(self, index: tuple[slice, ...]) -> LazyTensor:
    """Returns a part."""
    return self._map(lambda x: x[index])

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
    """Returns the values."""
    del copy  # There are none yet.
    if 0 in self.shape:
      return np.zeros(self.shape, dtype or self.dtype)
    axes = _axes(self.indices)
    index = map(_slice_along, self.indices, axes)
    found = self.values(*index).transpose(np.argsort(axes))
    return found if dtype is None else found.astype(dtype, copy=False)

  def _map(self, change: Callable[[np.ndarray], np.ndarray]) -> LazyTensor:
    return dataclasses.replace(self, indices=tuple(map(change, self.indices)))


def unpack(
  entries: Mapping[str, TensorEntry],
) -> dict[str, TensorEntry | PackedEntry]:
  """Returns the entries with one for each pair of blocks and scales.

  Raises:
    ValueError: Shapes or dtypes of a pair do not fit, or one of it is missing.
  """
  unpacked: dict[str, TensorEntry | PackedEntry] = {}
  for name, entry in entries.items():
    if name.endswith(_SCALES):
      continue
    if not name.endswith(_BLOCKS):
      unpacked[name] = entry
      continue
    name = name.removesuffix(_BLOCKS)
    scales = entries.get(f'{name}{_SCALES}')
    shape = (*entry.shape[:-1], _BLOCK_SIZE // 2)
    if (
      scales is None
      or len(shape) != 4
      or (entry.shape, scales.shape) != (shape, shape[:-1])
      or {entry.dtype, scales.dtype} != {np.dtype(np.uint8)}
    ):
      raise ValueError(
        f'{name}{_BLOCKS} in {entry.file} must be uint8 [E, O, I / 32, 16] with'
        f' {_SCALES[1:]} [E, O, I / 32], got {entry.dtype}'
        f' {list(entry.shape)} and'
        f' {scales and (scales.dtype.name, list(scales.shape))}; copy the files'
        ' of the model again'
      )
    unpacked[name] = PackedEntry(entry, scales)
  return unpacked


def _axes(indices: Sequence[np.ndarray]) -> list[int]:
  """Returns the axis along which each index grows; another one if none."""
  growing = [
    [i for i, n in enumerate(x.shape) if n > 1 and x.strides[i]]
    for x in indices
  ]
  used = {axis for axes in growing for axis in axes}
  left = iter([i for i in range(len(indices)) if i not in used])
  return [axes[0] if axes else next(left) for axes in growing]


def _slice_along(indices: np.ndarray, axis: int) -> slice:
  along: list[slice | int] = [0] * indices.ndim
  along[axis] = slice(None)
  vector = indices[tuple(along)]
  step = int(vector[1] - vector[0]) if len(vector) > 1 else 1
  return slice(int(vector[0]), int(vector[-1]) + 1, step)


def _dequantize(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
  """Returns bfloat16 values [E, O, I] of blocks [E, O, I / 32, 16]."""
  pairs = _value_pairs()[scales[..., np.newaxis], blocks]
  return pairs.view(_DTYPE).reshape(*blocks.shape[:2], -1)


@functools.cache
def _value_pairs() -> np.ndarray:
  """Returns the two values of each scale and byte, as the bits of a uint32."""
  values = np.array(_MAGNITUDES, np.float32)
  values = np.concatenate([values, -values])
  byte = np.arange(256)
  pairs = np.stack([values[byte % 16], values[byte // 16]], axis=1)
  factors = np.ldexp(np.float32(1), np.arange(255) - _BIAS)
  # The last exponent is NaN; that before it has values beyond float32.
  factors = np.append(factors, np.float32(np.nan))
  with np.errstate(over='ignore'):
    scaled = factors[:, np.newaxis, np.newaxis] * pairs
  return scaled.astype(_DTYPE).view(np.uint32)[..., 0]
