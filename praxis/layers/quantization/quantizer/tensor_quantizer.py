# SPDX-License-Identifier: Apache-2.0
"""TensorQuantizer: a layer that quantizes arrays by their dynamic range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from praxis import base_layer, pax_fiddle
from praxis.layers.quantization import quantization_hparams
from praxis.layers.quantization.operations import rounding

ActQuantizationParams = quantization_hparams.ActQuantizationParams
WeightQuantizationParams = quantization_hparams.WeightQuantizationParams

_Dims = int | Sequence[int] | None


class TensorQuantizer(base_layer.BaseLayer):
  """Quantizes arrays to `precision` bits with one scale per channel."""

  # Precision in bits; None: no quantization.
  precision: int | None = None
  # The other fields are those of WeightQuantizationParams.
  stop_scale_gradient: bool = False
  min_clipping: float | None = None
  num_optimize_clipping: int | None = None
  # None: 1.0.
  clipping_coeff: float | None = None
  add_scale_eps: bool | None = True
  unsigned_int_bounds: bool = False
  use_symmetric: bool = True
  quant_loss_weight: float | None = None
  kurt_loss_weight: float | None = None
  kurt: float = 1.8
  optimize_clipping_per_channel: bool = False
  sub_channels: int | None = None

  def setup(self) -> None:
    if self.precision is not None and self.precision > 23:
      raise ValueError(
        f'precision must be at most 23, the bits of a float32, got '
        f'{self.precision}'
      )
    self._check_clipping()

  def __call__(self) -> None:
    """Does nothing: the quantizer has no statistics."""

  def update(self, x: Shaped[Array, '...']) -> None:
    """Does nothing: ranges are dynamic."""

  def get_quant_scale(
    self, x: Float[Array, '...'], contract_dims: _Dims
  ) -> tuple[Float[Array, '...'], Float[Array, '...'] | None]:
    """Returns the scale and, if asymmetric, the minimum of the range.

    Both have size 1 in the contracted dimensions.
    """
    low, count = self.min_clipping, self.num_optimize_clipping
    if low is None or count is None:
      return self._range(x, contract_dims, self.clipping_coeff)
    factors = jnp.linspace(1.0, low, count, dtype=x.dtype)
    return self._best_range(x, contract_dims, factors)

  def to_quant(self, x: Float[Array, '*shape']) -> Float[Array, '*shape']:
    """Rounds and clips values that are already divided by the scale."""
    if self.precision is None:
      return x
    low, high = self._bounds(self.precision)
    return jnp.clip(rounding.pass_through(x + 0.5, jnp.floor), low, high)

  def dequantize(
    self,
    q_x: Shaped[Array, '...'],
    q_scale: Array,
    contract_dims: _Dims,
    zp_time_scale: Array | None = None,
  ) -> Array:
    """Returns dequantized values.

    Args:
      q_x: quantized values.
      q_scale: the scale.
      contract_dims: ignored; the scale broadcasts.
      zp_time_scale: the zero point times the scale; None if symmetric.

    Raises:
      ValueError: the presence of a zero point contradicts use_symmetric.
    """
    del contract_dims
    if self._is_symmetric != (zp_time_scale is None):
      expected = 'no' if self._is_symmetric else 'a'
      raise ValueError(
        f'zp_time_scale: {expected} zero point is needed with use_symmetric='
        f'{self.use_symmetric}; pass what quantize returned'
      )
    dequantized = q_x * q_scale
    return dequantized if zp_time_scale is None else dequantized - zp_time_scale

  def quantize(
    self,
    x: Float[Array, '*shape'],
    contract_dims: _Dims,
    squeeze_scale: bool = True,
    quantized_dtype: Any = None,
  ) -> rounding.Quantized:
    """Returns quantized values, their scale, and the zero point times scale.

    Args:
      x: the array to quantize.
      contract_dims: dimensions with a common scale.
      squeeze_scale: whether to squeeze them in scale and zero point.
      quantized_dtype: dtype of the quantized values; None: float.
    """
    scale, minimum = self.get_quant_scale(x, contract_dims)
    values, zero_point = self._divide_by_scale(x, scale, minimum)
    values = self.to_quant(values)
    # int8 is requested when weights are materialized, after training.
    if quantized_dtype != jnp.int8 and not self.do_eval:
      dequantized = self.dequantize(values, scale, contract_dims, zero_point)
      self._add_losses(x, dequantized, contract_dims)
    if squeeze_scale:
      axes = rounding.axes_of(contract_dims)
      scale = jnp.squeeze(scale, axis=axes)
      if zero_point is not None:
        zero_point = jnp.squeeze(zero_point, axis=axes)
    if quantized_dtype is not None:
      values = values.astype(quantized_dtype)
    return values, scale, zero_point

  @property
  def _is_symmetric(self) -> bool:
    return self.use_symmetric or self.precision is None

  def _bounds(self, precision: int) -> tuple[int | float, int | float]:
    return rounding.get_min_max(precision, self.unsigned_int_bounds)

  def _range(
    self, x: Array, dims: _Dims, clipping: float | Array | None
  ) -> tuple[Array, Array | None]:
    if self.precision is None:
      return jnp.ones((1,) * x.ndim, x.dtype), None
    axes, minimum = rounding.axes_of(dims), None
    low, high = self._bounds(self.precision)
    if self.use_symmetric:
      bound, levels = jnp.max(jnp.abs(x), axis=axes, keepdims=True), high
    else:
      minimum = jnp.min(x, axis=axes, keepdims=True)
      bound = jnp.max(x, axis=axes, keepdims=True) - minimum
      levels = high - low
    if clipping is not None:
      bound = bound * clipping
      minimum = None if minimum is None else minimum * clipping
    scale = bound / levels
    if self.stop_scale_gradient:
      scale = jax.lax.stop_gradient(scale)
    eps = jnp.finfo(x.dtype).eps if self.add_scale_eps else None
    return rounding.nonzero_scale(scale, eps), minimum

  def _best_range(
    self, x: Array, dims: _Dims, factors: Array
  ) -> tuple[Array, Array | None]:
    """Returns the range with the smallest error among factors of it."""
    axes = (
      rounding.axes_of(dims) if self.optimize_clipping_per_channel else None
    )

    def attempt(clipping: Array) -> tuple[Array, tuple[Array, Array | None]]:
      scale, minimum = self._range(x, dims, clipping)
      values, zero_point = self._divide_by_scale(x, scale, minimum)
      values = self.to_quant(values)
      dequantized = self.dequantize(values, scale, dims, zero_point)
      error = jnp.sum(jnp.abs(x - dequantized), axis=axes, keepdims=True)
      return error, (scale, minimum)

    errors, ranges = jax.vmap(attempt)(factors)
    best = jnp.argmin(errors, axis=0, keepdims=True)

    def choose(x: Array) -> Array:
      index = jnp.broadcast_to(best, (1, *x.shape[1:]))
      return jnp.take_along_axis(x, index, axis=0)[0]

    return jax.tree.map(choose, ranges)

  def _divide_by_scale(
    self, x: Array, scale: Array, minimum: Array | None
  ) -> tuple[Array, Array | None]:
    """Returns `x` in units of the scale, and the zero point times the scale."""
    if minimum is None or self.precision is None:
      return x / scale, None
    offset = self._bounds(self.precision)[0] - minimum / scale
    return x / scale + offset, scale * offset

  def _add_losses(self, x: Array, dequantized: Array, dims: _Dims) -> None:
    if self.quant_loss_weight is not None:
      self._add_loss(
        'quant_loss', jnp.square(x - dequantized), self.quant_loss_weight
      )
    if self.kurt_loss_weight is not None:
      axes = rounding.axes_of(dims)
      deviation = jnp.std(x, axis=axes, keepdims=True)
      deviation = rounding.nonzero_scale(deviation, None)
      standard = (x - jnp.mean(x, axis=axes, keepdims=True)) / deviation
      kurtosis = jnp.mean(standard**4, axis=axes)
      self._add_loss(
        'kurt_loss', jnp.square(kurtosis - self.kurt), self.kurt_loss_weight
      )

  def _add_loss(self, name: str, errors: Array, weight: float) -> None:
    loss = jnp.mean(errors) * weight
    self.add_summary(name, loss)
    self.add_aux_loss(name, loss)

  def _check_clipping(self) -> None:
    low, count = self.min_clipping, self.num_optimize_clipping
    if low is None and count is None:
      if self.optimize_clipping_per_channel:
        raise ValueError(
          'optimize_clipping_per_channel needs min_clipping and '
          'num_optimize_clipping, got None'
        )
    elif low is None or count is None:
      raise ValueError(
        'min_clipping and num_optimize_clipping must both be given or both be '
        f'None, got {low} and {count}'
      )
    elif not 0.0 < low < 1.0 or count <= 0:
      raise ValueError(
        'min_clipping must be between 0 and 1 and num_optimize_clipping '
        f'positive, got {low} and {count}'
      )
    elif self.clipping_coeff is not None:
      raise ValueError(
        f'clipping_coeff={self.clipping_coeff} excludes the search of '
        'min_clipping; set one of them to None'
      )
    if self.clipping_coeff is not None and not 0 <= self.clipping_coeff <= 1:
      raise ValueError(
        f'clipping_coeff must be from 0 to 1, got {self.clipping_coeff}'
      )


def create_tensor_quantizer(
  name: str,
  quant_params: ActQuantizationParams | WeightQuantizationParams | None,
) -> pax_fiddle.Config[base_layer.BaseLayer]:
  """Returns the Config of a quantizer; None gives one without quantization."""
  if quant_params is None:
    return pax_fiddle.Config(TensorQuantizer, name=name)
  config = pax_fiddle.Config(
    quant_params.override_quantizer_cls or TensorQuantizer,
    name=name,
    precision=quant_params.precision,
    stop_scale_gradient=quant_params.stop_scale_gradient,
    unsigned_int_bounds=quant_params.unsigned_int_bounds,
  )
  if isinstance(quant_params, ActQuantizationParams):
    return config.set(use_symmetric=quant_params.symmetric)
  clipping = quant_params.clipping_coeff
  common_fields = (
    'min_clipping',
    'num_optimize_clipping',
    'add_scale_eps',
    'use_symmetric',
    'quant_loss_weight',
    'kurt_loss_weight',
    'kurt',
    'optimize_clipping_per_channel',
    'sub_channels',
  )
  return config.set(
    clipping_coeff=None if clipping == 1.0 else clipping,
    **{field: getattr(quant_params, field) for field in common_fields},
  )


def do_static_activation_quantization(
  act_params: ActQuantizationParams | None,
) -> TypeGuard[ActQuantizationParams]:
  """Whether activations are quantized with static ranges."""
  return act_params is not None and act_params.stats_config is not None
