# SPDX-License-Identifier: Apache-2.0
"""Numbers of few bits, with the scale that restores them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from praxis.layers.quantization import optimization

_FP8 = jnp.float8_e4m3fn
# What int4 in floating point can say.
_FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

# A quantised array, its scale and its zero point (times the scale) or None.
Quantized = tuple[Array, Array, Array | None]


class FP4:
  """Numbers of 4 bits in floating point: a sign, two exponent bits, a bit."""

  int4_val = [*(-v for v in _FP4_VALUES[:0:-1]), *_FP4_VALUES]

  def __init__(self, val: Sequence[float] | None = None):
    self.v = jnp.array(val or self.int4_val, jnp.float32)

  def round(self, x: Shaped[Array, '*shape']) -> Float[Array, '*shape']:
    """Returns the nearest number for each of `x`."""
    nearest = jnp.argmin(jnp.abs(x[..., None] - self.v), axis=-1)
    return self.v[nearest]

  def nudge(
    self, x: Float[Array, '*shape'], contract_dim: int | Sequence[int]
  ) -> Float[Array, '*shape']:
    """Returns `x`, quantised over the dimensions and restored."""
    axes = axes_of(contract_dim)
    smallest = jnp.min(x, axis=axes, keepdims=True)
    largest = jnp.max(x, axis=axes, keepdims=True)
    scale = (largest - smallest) / (self.v[-1] - self.v[0])
    scale = scale + jnp.finfo(x.dtype).eps
    offset = self.v[0] - smallest / scale
    return ((self.round(x / scale + offset) - offset) * scale).astype(x.dtype)


def get_min_max(
  bits: int = 8, unsigned: bool = False, use_fp: bool = False
) -> tuple[int | float, int | float]:
  """Returns the smallest and largest number of so many bits (or of fp8)."""
  if use_fp:
    largest = float(jnp.finfo(_FP8).max)
    return -largest, largest
  if unsigned:
    return 0, 2**bits - 1
  return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def pass_through(
  x: Shaped[Array, '*shape'], fn: Callable[[Array], Array]
) -> Shaped[Array, '*shape']:
  """Returns fn(x), with the gradient of x."""
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
  """Returns `t` quantised, its scale and its zero point.

  `quantised * scale - zero point` is about `t`; scale and zero point have size
  1 in `contract_dims`, which share a scale (all do if it is None). The range is
  multiplied with `percentile`; if that is 1, `optimization_on_bound` searches
  for the factor with the smallest mean of |error| ** p_value, for each channel
  with `per_channel`. A scale of 0 becomes 1, or with `add_scale_eps` all get
  `scale_eps` more (the epsilon of their type if it is negative).

  With `need_gradient` the result stays in float and has the gradient of `t`;
  with `random_rounding` `key` decides what is rounded up. `use_fp` is for fp8,
  as its bits in int8, or in bfloat16 without `save_fp8_to_int8`. For
  `quant_method` see WeightQuantizationParams.
  """
  axes = axes_of(contract_dims)
  if bits == 1 and quant_method in ('bin', 'bin_norm'):
    return _binarize(t, axes, center=quant_method == 'bin_norm')
  low, high = _levels(bits, quant_method, use_fp)
  bound, smallest = _bound(t, axes, use_symmetric)
  if isinstance(percentile, jax.Array) or percentile < 1.0:
    bound = bound * percentile
  elif optimization_on_bound:
    bound = optimization.get_best_bound(
      t, bound, low, high, p_value, per_channel
    )
  eps = jnp.finfo(t.dtype).eps if scale_eps < 0 else scale_eps
  levels = high if use_symmetric else high - low
  scale = nonzero_scale(bound / levels, eps if add_scale_eps else None)
  numbers, zero_point = t / scale, None
  if smallest is not None:
    offset = low - smallest / scale
    numbers, zero_point = numbers + offset, scale * offset
  if use_fp:
    numbers = _to_fp8(numbers, low, high, save_fp8_to_int8)
  elif need_gradient:
    numbers = jnp.clip(pass_through(numbers, jnp.round), low, high)
  else:
    if random_rounding:
      numbers += jax.random.uniform(key, t.shape, minval=-0.5, maxval=0.5)
    numbers = jnp.clip(jnp.round(numbers), low, high).astype(_container(bits))
  return numbers, scale, zero_point


def nonzero_scale(
  scale: Float[Array, '*shape'], eps: Any
) -> Float[Array, '*shape']:
  """Returns the scale plus `eps`, or if that is None with 1 for 0."""
  if eps is None:
    return jnp.where(scale == 0.0, jnp.ones_like(scale), scale)
  return scale + eps


def clip_to_fp16(t: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """Returns `t`, a hundredth smaller where it exceeds float16's range."""
  exceeds = jnp.abs(t) > float(jnp.finfo(jnp.float16).max)
  return jnp.where(exceeds, t * 0.99, t)


def factorize_weight(
  var: Float[Array, '*B M N'], rank: int
) -> tuple[Float[Array, '*B M R'], Float[Array, '*B R N']]:
  """Returns the two factors of rank R whose product is nearest to `var`.

  The singular values are in the second one.
  """
  u, s, vh = jnp.linalg.svd(var, full_matrices=False)
  return u[..., :rank], s[..., :rank, None] * vh[..., :rank, :]


def _levels(
  bits: int, quant_method: str, use_fp: bool
) -> tuple[int | float, int | float]:
  if bits < 2:
    raise ValueError(
      f'bits must be 2 or more with quant_method={quant_method!r}, got {bits}; '
      "one bit needs 'bin' or 'bin_norm'"
    )
  return get_min_max(bits, use_fp=use_fp)


def _bound(
  t: Array, axes: tuple[int, ...] | None, use_symmetric: bool
) -> tuple[Array, Array | None]:
  """Returns the size of the range, and if asymmetric where it starts."""
  if use_symmetric:
    return jnp.max(jnp.abs(t), axis=axes, keepdims=True), None
  smallest = jnp.min(t, axis=axes, keepdims=True)
  return jnp.max(t, axis=axes, keepdims=True) - smallest, smallest


def _binarize(
  t: Shaped[Array, '...'], axes: tuple[int, ...] | None, *, center: bool
) -> Quantized:
  if center:
    t = t - jnp.mean(t, axis=axes, keepdims=True)
  # A zero has no sign.
  t = jnp.where(t == 0.0, 1e-6, t)
  scale = jnp.mean(jnp.abs(t), axis=axes, keepdims=True)
  return pass_through(t, jnp.sign), scale, None


def _to_fp8(
  scaled: Shaped[Array, '*shape'], low: float, high: float, as_bits: bool
) -> Shaped[Array, '*shape']:
  numbers = jnp.clip(scaled, low, high).astype(_FP8)
  if as_bits:
    return jax.lax.bitcast_convert_type(numbers, jnp.int8)
  return numbers.astype(jnp.bfloat16)


def _container(bits: int) -> Any:
  if bits <= 8:
    return jnp.int8
  return jnp.int16 if bits <= 16 else jnp.int32


def axes_of(dims: int | Sequence[int] | None) -> tuple[int, ...] | None:
  """Returns one or several axes as a tuple; None, for all, as it is."""
  if dims is None:
    return None
  return (dims,) if isinstance(dims, int) else tuple(dims)
