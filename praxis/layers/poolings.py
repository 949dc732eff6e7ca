# SPDX-License-Identifier: Apache-2.0
"""Max and average pooling."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.typing
import numpy as np
from jaxtyping import Array, Num

from praxis import base_layer
from praxis.alias_names import module_getattr

__getattr__ = module_getattr(__name__)


class Pooling(base_layer.BaseLayer):
  """2D pooling of images or spectrograms."""

  # Height and width of windows and strides.
  window_shape: Sequence[int] = (0, 0)
  window_stride: Sequence[int] = (0, 0)
  # 'MAX' or 'AVG'.
  pooling_type: str = 'MAX'
  # 'SAME' or 'VALID'.
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
    """Returns the pooled inputs and their paddings.

    Padded rows are excluded. With a stride or 'VALID', an output is padding
    (and 0) if any row of its window is.

    Args:
      inputs: images.
      paddings: 1 at padded rows.
    """
    pool = _WindowReduction(self.window_shape, self.window_stride, self.padding)
    outputs = pool.reduce(self.pooling_type, inputs, paddings)
    if paddings is None:
      return outputs, None
    if self.window_stride[0] > 1 or self.padding == 'VALID':
      rows = _WindowReduction(
        self.window_shape[:1], self.window_stride[:1], self.padding
      )
      paddings = rows.reduce('MAX', paddings, None)
    return _zero_padded(outputs, paddings), paddings


class GlobalPooling(base_layer.BaseLayer):
  """Pooling over whole dimensions."""

  # 'MAX' or 'AVG'.
  pooling_type: str = 'AVG'
  # The dimensions to reduce; not negative.
  pooling_dims: Sequence[int] | None = None
  # Whether to keep them with size 1.
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
      epsilon: added to the number of elements, with paddings.
      compatible_paddings: 1 at excluded inputs; broadcast to their shape.
    """
    dims: dict[str, Any] = {
      'axis': tuple(self.pooling_dims or ()),
      'keepdims': self.keepdims,
    }
    if compatible_paddings is None:
      reduce = jnp.max if self.pooling_type == 'MAX' else jnp.mean
      return reduce(inputs, **dims).astype(inputs.dtype)
    padded = jnp.broadcast_to(compatible_paddings > 0, inputs.shape)
    if self.pooling_type == 'MAX':
      return jnp.max(jnp.where(padded, _lowest(inputs.dtype), inputs), **dims)
    total = jnp.sum(
      jnp.where(padded, 0, inputs), **dims, dtype=_sum_dtype(inputs.dtype)
    )
    count = jnp.sum(~padded, **dims, dtype=jnp.float32)
    return (total / (count + epsilon)).astype(inputs.dtype)


class Pooling1D(base_layer.BaseLayer):
  """1D pooling over time, the second dimension."""

  stride: int = 1
  # Size of windows; 0: the stride.
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
    """Returns the pooled inputs and their paddings, S = ceil(T / stride)."""
    window = self.window or self.stride
    strided = None if paddings is None else paddings[:, :: self.stride]
    if window == 1:
      return inputs[:, :: self.stride], strided
    pool = _WindowReduction((window,), (self.stride,), 'SAME')
    outputs = pool.reduce(self.pooling_type, inputs, paddings)
    if self.pooling_type == 'MAX' and strided is not None:
      outputs = _zero_padded(outputs, strided)
    return outputs, strided


@dataclasses.dataclass(frozen=True)
class _WindowReduction:
  """Reductions of windows over the dimensions after the batch."""

  shape: Sequence[int]
  stride: Sequence[int]
  # 'SAME' or 'VALID'.
  padding: str

  def reduce(self, kind: str, inputs: Array, paddings: Array | None) -> Array:
    """Returns the 'MAX' or 'AVG' of each window, without padding."""
    if kind == 'MAX':
      lowest = _lowest(inputs.dtype)
      if paddings is not None:
        is_padding = _append_dims(paddings, inputs.ndim) > 0
        inputs = jnp.where(is_padding, lowest, inputs)
      return self._reduce_window(inputs, lowest, jax.lax.max)
    # Without paddings one row suffices, and XLA folds the counts to constants.
    num_rows = 1 if paddings is None else len(inputs)
    sizes = inputs.shape[1 : 1 + len(self.shape)]
    valid = jnp.ones((num_rows, *sizes), jnp.float32)
    if paddings is not None:
      valid *= 1.0 - _append_dims(paddings, valid.ndim)
      inputs = _zero_padded(inputs, paddings)
    total = self._reduce_window(
      inputs.astype(_sum_dtype(inputs.dtype)), 0, jax.lax.add
    )
    count = self._reduce_window(valid, 0, jax.lax.add)
    scale = jnp.where(count > 0, 1.0 / jnp.maximum(count, 1.0), 0.0)
    mean = total * _append_dims(scale, inputs.ndim)
    is_float = jnp.issubdtype(inputs.dtype, jnp.floating)
    return mean.astype(inputs.dtype) if is_float else mean

  def _reduce_window(
    self,
    inputs: Array,
    init: np.ndarray | int,
    operation: Callable[[Array, Array], Array],
  ) -> Array:
    ones = (1,) * (inputs.ndim - 1 - len(self.shape))
    return jax.lax.reduce_window(
      inputs,
      np.asarray(init, inputs.dtype),
      operation,
      window_dimensions=(1, *self.shape, *ones),
      window_strides=(1, *self.stride, *ones),
      padding=self.padding,
    )


def _zero_padded(x: Array, paddings: Array) -> Array:
  """Returns x with 0 at padding, where x may be infinite."""
  return jnp.where(_append_dims(paddings, x.ndim) > 0, 0, x)


def _append_dims(x: Array, rank: int) -> Array:
  """Returns x with trailing dimensions of size 1 up to `rank`."""
  return x.reshape(x.shape + (1,) * (rank - x.ndim))


def _sum_dtype(dtype: jax.typing.DTypeLike) -> jnp.dtype:
  """Returns the dtype of sums, which need more digits or range than terms."""
  return jnp.promote_types(dtype, jnp.float32)


def _lowest(dtype: jax.typing.DTypeLike) -> np.ndarray:
  """Returns the identity of max."""
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
