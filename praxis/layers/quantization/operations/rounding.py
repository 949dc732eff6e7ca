# SPDX-License-Identifier: Apache-2.0
"""Quantization of arrays to low precision, with scales and zero points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from praxis.layers.quantization import optimization

_FP8 = jnp.float8_e4m3fn
# Non-negative values of 4-bit floats (E2M1).
_FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

# A quantized array, its scale and its zero point (times the scale) or None.
Quantized = tuple[Array, Array, Array | None]


class FP4:
  """4-bit floats with two exponent bits and one mantissa bit (E2M1)."""

  int4_val = [*(-v for v in _FP4_VALUES[:0:-1]), *_FP4_VALUES]

  def __init__(self, val: Sequence[float] | None = None):
    self.v = jnp.array(val or self.int4_val, jnp.float32)

  def round(self, x: Shaped[Array, '*shape']) -> Float[Array, '*shape']:
    """Rounds each element of `x` to the nearest value."""
    nearest = jnp.argmin(jnp.abs(x[..., None] - self.v), axis=-1)
    return self.v[nearest]

  def nudge(
    self, x: Float[Array, '*shape'], contract_dim: int | Sequence[int]
  ) -> Float[Array, '*shape']:
    """Returns `x` fake-quantized; `contract_dim` share a scale."""
    axes = axes_of(contract_dim)
    minimum = jnp.min(x, axis=axes, keepdims=True)
    maximum = jnp.max(x, axis=axes, keepdims=True)
    scale = (maximum - minimum) / (self.v[-1] - self.v[0])
    scale = scale + jnp.finfo(x.dtype).eps
    offset = self.v[0] - minimum / scale
    return ((self.round(x / scale + offset) - offset) * scale).astype(x.dtype)


def get_min_max(
  bits: int = 8, unsigned: bool = False, use_fp: bool = False
) -> tuple[int | float, int | float]:
  """Returns the minimum and maximum of integers of `bits`, or of fp8 (E4M3)."""
  if use_fp:
    maximum = float(jnp.finfo(_FP8).max)
    return -maximum, maximum
  if unsigned:
    return 0, 2**bits - 1
  return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def pass_through(
  x: Shaped[Array, '*shape'], fn: Callable[[Array], Array]
) -> Shaped[Array, '*shape']:
  """Returns fn(x) with a straight-through gradient."""
  # The difference is exactly zero, and its gradient exactly one.
  return x - jax.lax.stop_gradient(x) + jax.lax.stop_gradient(fn(x))


def reduce_precision(
  t: Shaped[Array, '...'],
  contract_dims: int | Sequence[int] | None,
  need_gradient: bool = False,
  bits: int = 8,
  optimization_on_bound: bool = False,
  p_value: float = 1.0,
  percentile: float | Array = 1.0,
  use_symmetric: bool = True,
  use_fp: bool = False,
  add_scale_eps: bool = False,
  scale_eps: float = -1.0,
  per_channel: bool = False,
  random_rounding: bool = False,
  key: Array | None = None,
  save_fp8_to_int8: bool = True,
  quant_method: str = 'default',
) -> Quantized:
  """Returns (quantized values, scale, zero point or None).

  values * scale - zero point approximates `t`. Scale and zero point have size 1
  in `contract_dims`.

  Args:
    t: the array to quantize.
    contract_dims: dimensions with a common scale; None: all.
    need_gradient: whether the values stay float, with a straight-through
      gradient.
    bits: the precision.
    optimization_on_bound: whether to search for the best factor of the bound;
      requires a `percentile` of 1.
    p_value: the search minimizes the mean of |error| ** p_value.
    percentile: factor of the bound.
    use_symmetric: whether there is no zero point.
    use_fp: whether to quantize to fp8 (E4M3).
    add_scale_eps: whether to add `scale_eps` to scales; otherwise a scale of 0
      becomes 1.
    scale_eps: the epsilon; negative: the epsilon of the dtype.
    per_channel: whether the search selects a factor per channel.
    random_rounding: whether to round stochastically.
    key: key of the stochastic rounding.
    save_fp8_to_int8: whether fp8 values are bitcast to int8; otherwise they are
      converted to bfloat16.
    quant_method: as `WeightQuantizationParams.quant_method`. One bit has the
      levels -1 and 1 with 'bin' and 'bin_norm', else -1 and 0 and no scale.
  """
  axes = axes_of(contract_dims)
  if bits == 1 and quant_method in ('bin', 'bin_norm'):
    return _binarize(t, axes, center=quant_method == 'bin_norm')
  low, high = get_min_max(bits, use_fp=use_fp)
  bound, minimum = _bound(t, axes, use_symmetric)
  if isinstance(percentile, jax.Array) or percentile < 1.0:
    bound = bound * percentile
  elif optimization_on_bound:
    bound = optimization.get_best_bound(
      t, bound, low, high, p_value, per_channel
    )
  eps = jnp.finfo(t.dtype).eps if scale_eps < 0 else scale_eps
  levels = high if use_symmetric else high - low
  scale = bound / levels
  if minimum is not None:
    # The zero point of equal values is not far above them: bfloat16 keeps it.
    unit = jax.lax.stop_gradient(jnp.abs(minimum) / -low)
    scale = jnp.where(scale == 0.0, unit.astype(scale.dtype), scale)
  scale = nonzero_scale(scale, eps if add_scale_eps else None)
  values, zero_point = t / scale, None
  if minimum is not None:
    offset = low - minimum / scale
    values, zero_point = values + offset, scale * offset
  if use_fp:
    values = _to_fp8(values, low, high, save_fp8_to_int8)
  elif need_gradient:
    values = jnp.clip(pass_through(values, jnp.round), low, high)
  else:
    if random_rounding:
      if key is None:
        raise ValueError('random_rounding=True needs a key, got None')
      values += jax.random.uniform(key, t.shape, minval=-0.5, maxval=0.5)
    values = jnp.clip(jnp.round(values), low, high).astype(_container(bits))
  return values, scale, zero_point


def nonzero_scale(
  scale: Float[Array, '*shape'], eps: Any
) -> Float[Array, '*shape']:
  """Returns the scale plus `eps`; if that is None, with zeros replaced by 1."""
  if eps is None:
    return jnp.where(scale == 0.0, jnp.ones_like(scale), scale)
  return scale + eps


def clip_to_fp16(t: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """Returns `t`, times 0.99 where it exceeds the range of float16."""
  exceeds = jnp.abs(t) > float(jnp.finfo(jnp.float16).max)
  return jnp.where(exceeds, t * 0.99, t)


def factorize_weight(
  var: Float[Array, '*B M N'], rank: int
) -> tuple[Float[Array, '*B M R'], Float[Array, '*B R N']]:
  """Returns the best rank-R factorization of `var`, by truncated SVD.

  The second factor contains the singular values.
  """
  u, s, vh = jnp.linalg.svd(var, full_matrices=False)
  return u[..., :rank], s[..., :rank, None] * vh[..., :rank, :]


def _bound(
  t: Array, axes: tuple[int, ...] | None, use_symmetric: bool
) -> tuple[Array, Array | None]:
  """Returns the size of the range and, if asymmetric, its minimum."""
  if use_symmetric:
    return jnp.max(jnp.abs(t), axis=axes, keepdims=True), None
  minimum = jnp.min(t, axis=axes, keepdims=True)
  return jnp.max(t, axis=axes, keepdims=True) - minimum, minimum


def _binarize(
  t: Shaped[Array, '...'], axes: tuple[int, ...] | None, *, center: bool
) -> Quantized:
  if center:
    t = t - jnp.mean(t, axis=axes, keepdims=True)
  # sign(0) is 0, not a binary value.
  t = jnp.where(t == 0.0, 1e-6, t)
  scale = jnp.mean(jnp.abs(t), axis=axes, keepdims=True)
  return pass_through(t, jnp.sign), scale, None


def _to_fp8(
  scaled: Shaped[Array, '*shape'], low: float, high: float, as_bits: bool
) -> Shaped[Array, '*shape']:
  values = jnp.clip(scaled, low, high).astype(_FP8)
  if as_bits:
    return jax.lax.bitcast_convert_type(values, jnp.int8)
  return values.astype(jnp.bfloat16)


def _container(bits: int) -> Any:
  if bits <= 8:
    return jnp.int8
  return jnp.int16 if bits <= 16 else jnp.int32


def axes_of(dims: int | Sequence[int] | None) -> tuple[int, ...] | None:
  """Returns one or several dimensions as a tuple; None stays None."""
  if dims is None:
    return None
  return (dims,) if isinstance(dims, int) else tuple(dims)
