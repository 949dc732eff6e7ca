# SPDX-License-Identifier: Apache-2.0
"""Maxima and means over windows, or over whole dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Num

from praxis import base_layer


class Pooling(base_layer.BaseLayer):
  """The maximum or the mean of windows of an image, or of a spectrogram."""

  # Height and width of a window, and how far it moves.
  window_shape: Sequence[int] = (0, 0)
  window_stride: Sequence[int] = (0, 0)
  # 'MAX' or 'AVG'.
  pooling_type: str = 'MAX'
  # 'SAME': windows may reach out of the image, 'VALID': they do not.
  padding: str = 'SAME'

  def setup(self) -> None:
    for name in ('window_shape', 'window_stride'):
      value = tuple(getattr(self, name))
      if len(value) != 2 or min(value) <= 0:
        raise ValueError(f'{name} must be two positive numbers, got {value}')
    _check_one_of(self, 'pooling_type', ('MAX', 'AVG'))
    _check_one_of(self, 'padding', ('SAME', 'VALID'))

  def __call__(
    self,
    inputs: Num[Array, 'B H W D'],
    paddings: Num[Array, 'B H'] | None = None,
  ) -> tuple[Num[Array, 'B U V D'], Num[Array, 'B U'] | None]:
    """Returns what is pooled, and its paddings.

    Padded rows count for nothing. Where rows are skipped or lost, an output is
    padding (and 0) if any row of its window is.
    """
    pool = _Pool(self.window_shape, self.window_stride, self.padding)
    outputs = pool.reduce(self.pooling_type, inputs, paddings)
    if paddings is None:
      return outputs, None
    if self.window_stride[0] > 1 or self.padding == 'VALID':
      rows = _Pool(self.window_shape[:1], self.window_stride[:1], self.padding)
      paddings = rows.reduce('MAX', paddings, None)
    return _zero_padded(outputs, paddings), paddings


class GlobalPooling(base_layer.BaseLayer):
  """The maximum or the mean over whole dimensions."""

  # 'MAX' or 'AVG'.
  pooling_type: str = 'AVG'
  # The dimensions that are reduced, counted from the first.
  pooling_dims: Sequence[int] | None = None
  # Whether they remain, with size 1.
  keepdims: bool = False

  def setup(self) -> None:
    _check_one_of(self, 'pooling_type', ('MAX', 'AVG'))
    if self.pooling_dims is None or any(d < 0 for d in self.pooling_dims):
      raise ValueError(
        'pooling_dims must be a list of dimensions, none negative, got '
        f'{self.pooling_dims}; (1, 2) pools an image'
      )

  def __call__(
    self,
    inputs: Num[Array, '...'],
    epsilon: float = 1e-8,
    compatible_paddings: Num[Array, '...'] | None = None,
  ) -> Num[Array, '...']:
    """Returns the reduced inputs.

    Args:
      inputs: of any shape.
      epsilon: added to the number of elements, if there are paddings.
      compatible_paddings: 1 where an input does not count; broadcast to them.
    """
    dims = {'axis': tuple(self.pooling_dims), 'keepdims': self.keepdims}
    if compatible_paddings is None:
      reduce = jnp.max if self.pooling_type == 'MAX' else jnp.mean
      return reduce(inputs, **dims).astype(inputs.dtype)
    padded = jnp.broadcast_to(compatible_paddings > 0, inputs.shape)
    if self.pooling_type == 'MAX':
      return jnp.max(jnp.where(padded, _least(inputs.dtype), inputs), **dims)
    total = jnp.sum(jnp.where(padded, 0, inputs), **dims)
    count = jnp.sum(~padded, **dims, dtype=jnp.float32)
    return (total / (count + epsilon)).astype(inputs.dtype)


class Pooling1D(base_layer.BaseLayer):
  """The maximum or the mean of windows over time, the second dimension."""

  # How far a window moves.
  stride: int = 1
  # Its size; 0 is that of the stride.
  window: int = 0
  # 'MAX' or 'AVG'.
  pooling_type: str = 'AVG'

  def setup(self) -> None:
    if self.stride <= 0 or self.window < 0:
      raise ValueError(
        'stride must be positive and window not negative, got stride '
        f'{self.stride}, window {self.window}'
      )
    _check_one_of(self, 'pooling_type', ('MAX', 'AVG'))

  def __call__(
    self,
    inputs: Num[Array, 'B T *rest'],
    paddings: Num[Array, 'B T'] | None = None,
  ) -> tuple[Num[Array, 'B S *rest'], Num[Array, 'B S'] | None]:
    """Returns what is pooled and its paddings, S = ceil(T / stride)."""
    window = self.window or self.stride
    outside = None if paddings is None else paddings[:, :: self.stride]
    if window == 1:
      return inputs[:, :: self.stride], outside
    pool = _Pool((window,), (self.stride,), 'SAME')
    outputs = pool.reduce(self.pooling_type, inputs, paddings)
    if self.pooling_type == 'MAX' and outside is not None:
      outputs = _zero_padded(outputs, outside)
    return outputs, outside


class _Pool:
  """Windows over the dimensions after the first."""

  def __init__(self, shape: Sequence[int], stride: Sequence[int], padding: str):
    self._shape, self._stride, self._padding = shape, stride, padding

  def reduce(self, kind: str, inputs: Array, paddings: Array | None) -> Array:
    """Returns the 'MAX' or 'AVG' of each window over what is no padding."""
    if kind == 'MAX':
      lowest = _least(inputs.dtype)
      if paddings is not None:
        inputs = jnp.where(_align(paddings, inputs.ndim) > 0, lowest, inputs)
      return self._windows(inputs, lowest, jax.lax.max)
    # One row counts for all: XLA makes the counts while it compiles.
    rows = 1 if paddings is None else len(inputs)
    sizes = inputs.shape[1 : 1 + len(self._shape)]
    valid = jnp.ones((rows, *sizes), jnp.float32)
    if paddings is not None:
      valid *= 1.0 - _align(paddings, valid.ndim)
      inputs = jnp.where(_align(paddings, inputs.ndim) > 0, 0, inputs)
    total = self._windows(inputs, 0, jax.lax.add)
    count = self._windows(valid, 0, jax.lax.add)
    share = jnp.where(count > 0, 1.0 / jnp.maximum(count, 1.0), 0.0)
    return total * _align(share, inputs.ndim).astype(total.dtype)

  def _windows(self, inputs: Array, start: Any, combine: Any) -> Array:
    rest = (1,) * (inputs.ndim - 1 - len(self._shape))
    return jax.lax.reduce_window(
      inputs,
      np.asarray(start, inputs.dtype),
      combine,
      window_dimensions=(1, *self._shape, *rest),
      window_strides=(1, *self._stride, *rest),
      padding=self._padding,
    )


def _zero_padded(outputs: Array, paddings: Array) -> Array:
  # Not a product: what is padded may be infinite.
  return jnp.where(_align(paddings, outputs.ndim) > 0, 0, outputs)


def _align(values: Array, rank: int) -> Array:
  """Returns `values` with dimensions of size 1 after its own."""
  return values.reshape(values.shape + (1,) * (rank - values.ndim))


def _least(dtype: Any) -> Any:
  if jnp.issubdtype(dtype, jnp.inexact):
    return np.asarray(-np.inf, dtype)
  return np.asarray(jnp.iinfo(dtype).min, dtype)


def _check_one_of(
  layer: base_layer.BaseLayer, name: str, choices: tuple[str, ...]
) -> None:
  value = getattr(layer, name)
  if value not in choices:
    raise ValueError(
      f'{name} of {type(layer).__name__} {layer.name!r} must be one of '
      f'{choices}, got {value!r}'
    )
