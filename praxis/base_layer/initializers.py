# SPDX-License-Identifier: Apache-2.0
"""Initializers of weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from praxis import pax_fiddle
from praxis.pytypes import JTensor, PRNGKey

_OTHER_METHODS = (
  'constant',
  'delta_orthogonal',
  'inverse_softplus_of_log_uniform',
  'log_of_uniform',
)
_TRUNCATE_AT = 2.0  # standard deviations


@pax_fiddle.register_dataclass
@dataclasses.dataclass(frozen=True)
class WeightInit:
  """An initializer: the name of a distribution (see the factories), a scale."""

  method: str
  scale: float | int

  @staticmethod
  def Gaussian(scale: float = 1.0) -> WeightInit:
    """N(0, scale^2)."""
    return WeightInit('gaussian', scale)

  @staticmethod
  def Uniform(scale: float = 1.0) -> WeightInit:
    """Uniform in [-scale, scale)."""
    return WeightInit('uniform', scale)

  @staticmethod
  def LogOfUniform(scale: float = 1.0) -> WeightInit:
    """The logarithm of a number that is uniform in [scale / 1000, scale)."""
    return WeightInit('log_of_uniform', scale)

  @staticmethod
  def InverseSoftplusOfLogUniform(scale: float = 1.0) -> WeightInit:
    """The inverse softplus of a number in [scale / 100, scale).

    Its logarithm is uniform.
    """
    return WeightInit('inverse_softplus_of_log_uniform', scale)

  @staticmethod
  def Constant(scale: float | int | bool = 1.0) -> WeightInit:
    """All elements equal `scale`."""
    return WeightInit('constant', scale)

  @staticmethod
  def TruncatedGaussian(scale: float = 1.0) -> WeightInit:
    """scale * N(0, 1), truncated at two standard deviations."""
    return WeightInit('truncated_gaussian', scale)

  @staticmethod
  def Xavier(scale: float = 1.0) -> WeightInit:
    """Uniform with bound scale * sqrt(6 / (fan_in + fan_out)).

    References: Glorot and Bengio, AISTATS 2010, equation 16.
    """
    return WeightInit('xavier', scale)

  @staticmethod
  def XavierWithFixupParams(
    scale: float = 1.0,
    depth: float = 1.0,
    layers_per_residual_block: float = 1.0,
  ) -> WeightInit:
    """Xavier times depth^(-1 / (2 layers_per_residual_block)).

    References: Fixup, https://arxiv.org/abs/1901.09321
    """
    factor = math.pow(depth, -1.0 / (2 * layers_per_residual_block))
    return WeightInit('xavier', scale * factor)

  @staticmethod
  def GaussianSqrtDim(scale: float = 1.0) -> WeightInit:
    """N(0, scale^2 / shape[0])."""
    return WeightInit('gaussian_sqrt_dim', scale)

  @staticmethod
  def GaussianSqrtFanIn(scale: float = 1.0) -> WeightInit:
    """N(0, scale^2 / fan_in)."""
    return WeightInit('gaussian_sqrt_fanin', scale)

  @staticmethod
  def GaussianSqrtFanOut(scale: float = 1.0) -> WeightInit:
    """N(0, scale^2 / fan_out)."""
    return WeightInit('gaussian_sqrt_fanout', scale)

  @staticmethod
  def GaussianSqrtFanAvg(scale: float = 1.0) -> WeightInit:
    """N(0, 2 scale^2 / (fan_in + fan_out))."""
    return WeightInit('gaussian_sqrt_fanavg', scale)

  @staticmethod
  def UniformSqrtDim(scale: float = 1.0) -> WeightInit:
    """Uniform with bound scale / sqrt(shape[0])."""
    return WeightInit('uniform_sqrt_dim', scale)

  @staticmethod
  def UniformSqrtFanAvg(scale: float = 1.0) -> WeightInit:
    """Uniform with bound scale * sqrt(6 / (fan_in + fan_out))."""
    return WeightInit('uniform_sqrt_fanavg', scale)

  @staticmethod
  def UniformUnitScaling(scale: float = 1.0) -> WeightInit:
    """Uniform with bound scale * sqrt(3 / prod(shape[:-1]))."""
    return WeightInit('uniform_unit_scaling', scale)

  @staticmethod
  def TruncatedGaussianSqrtDim(scale: float = 1.0) -> WeightInit:
    """Truncated N(0, scale^2 / shape[0])."""
    return WeightInit('truncated_gaussian_sqrt_dim', scale)

  @staticmethod
  def TruncatedGaussianSqrtFanIn(scale: float = 1.0) -> WeightInit:
    """Truncated N(0, scale^2 / fan_in)."""
    return WeightInit('truncated_gaussian_sqrt_fanin', scale)

  @staticmethod
  def TruncatedGaussianSqrtFanOut(scale: float = 1.0) -> WeightInit:
    """Truncated N(0, scale^2 / fan_out)."""
    return WeightInit('truncated_gaussian_sqrt_fanout', scale)

  @staticmethod
  def ScaledDeltaOrthogonal(scale: float = 1.0) -> WeightInit:
    """`scaled_orthogonal` in 2-D, `scaled_delta_orthogonal` from 3-D on.

    Vectors are Gaussian. The scale multiplies all of them; upstream ignores it
    from 2-D on.

    References: https://arxiv.org/abs/1806.05393
    """
    return WeightInit('delta_orthogonal', scale)


def default_param_init() -> WeightInit:
  """Xavier with scale 1.000001, the default of upstream."""
  return WeightInit.Xavier(1.000001)


def get_fan_in_fan_out(
  shape: Sequence[int],
  fan_in_axes: Sequence[int] | None = None,
  fan_out_axes: Sequence[int] | None = None,
) -> tuple[int | None, int | None]:
  """Returns (fan_in, fan_out) of a weight.

  By default they are the last two dimensions times the product of the others.
  Both fans of a vector are its length; those of a scalar are None.

  Args:
    shape: the shape of the weight.
    fan_in_axes: the dimensions whose product is the fan-in.
    fan_out_axes: the dimensions whose product is the fan-out.

  Raises:
    ValueError: only one of `fan_in_axes` and `fan_out_axes` is given.
  """
  shape = tuple(shape)
  if fan_in_axes or fan_out_axes:
    if not (fan_in_axes and fan_out_axes):
      raise ValueError(
        'give both fan_in_axes and fan_out_axes, got '
        f'{fan_in_axes} and {fan_out_axes}'
      )
    return (
      math.prod(shape[a] for a in fan_in_axes),
      math.prod(shape[a] for a in fan_out_axes),
    )
  if not shape:
    return None, None
  if len(shape) == 1:
    return shape[0], shape[0]
  receptive_field = math.prod(shape[:-2])
  return shape[-2] * receptive_field, shape[-1] * receptive_field


def is_default_param_init(p: WeightInit) -> bool:
  """Whether an initializer is the default one."""
  return p == default_param_init()


def scaled_orthogonal(
  key: PRNGKey, shape: Sequence[int], dtype: jnp.dtype = jnp.float32
) -> JTensor:
  """Returns a random orthogonal matrix times max(1, sqrt(rows / columns))."""
  scale = max(math.sqrt(shape[-2] / shape[-1]), 1.0)
  return jax.nn.initializers.orthogonal(scale)(key, tuple(shape), dtype)


def scaled_delta_orthogonal(
  key: PRNGKey, shape: Sequence[int], dtype: jnp.dtype = jnp.float32
) -> JTensor:
  """Returns a kernel that is orthogonal at its center and zero elsewhere.

  References: https://arxiv.org/abs/1806.05393

  Raises:
    ValueError: the shape does not have 3 to 5 dimensions.
  """
  if not 3 <= len(shape) <= 5:
    raise ValueError(
      'scaled_delta_orthogonal needs a shape of 3, 4 or 5 dimensions, got '
      f'{tuple(shape)}; scaled_orthogonal takes matrices'
    )
  center = tuple((n - 1) // 2 for n in shape[:-2])
  matrix = scaled_orthogonal(key, shape[-2:], dtype)
  return jnp.zeros(shape, dtype).at[center].set(matrix)


def sample(
  init: WeightInit,
  key: PRNGKey,
  shape: Sequence[int],
  dtype: jnp.dtype,
  fans: tuple[int | None, int | None],
) -> JTensor:
  """Returns a sample of `init` with the given shape, dtype and fans."""
  shape = tuple(shape)
  if init.method == 'constant':
    return _constant(init.scale, shape, dtype)
  if init.method == 'log_of_uniform':
    bounds = init.scale / 1000, init.scale
    return jnp.log(jax.random.uniform(key, shape, dtype, *bounds))
  if init.method == 'inverse_softplus_of_log_uniform':
    bounds = math.log(init.scale / 100), math.log(init.scale)
    number = jnp.exp(jax.random.uniform(key, shape, dtype, *bounds))
    return jnp.log(jnp.expm1(number))
  if init.method == 'delta_orthogonal':
    return init.scale * _delta_orthogonal(key, shape, dtype)
  unit_sample, _ = _scaled_distribution(init)
  return scale_of(init, shape, fans) * unit_sample(key, shape, dtype)


def scale_of(
  init: WeightInit, shape: Sequence[int], fans: tuple[int | None, int | None]
) -> float:
  """Returns the standard deviation or bound of `init`.

  Raises:
    ValueError: `init` has none.
  """
  _, factor = _scaled_distribution(init)
  fan_in, fan_out = fans
  if fan_in is None or fan_out is None:  # A scalar.
    return init.scale
  return init.scale * factor(tuple(shape), fan_in, fan_out)


def _scaled_distribution(
  init: WeightInit,
) -> tuple[Callable[..., JTensor], _ScaleFactor]:
  if init.method not in _SCALED_DISTRIBUTIONS:
    raise ValueError(
      f'unknown WeightInit method {init.method!r}; one of '
      f'{sorted([*_SCALED_DISTRIBUTIONS, *_OTHER_METHODS])}'
    )
  return _SCALED_DISTRIBUTIONS[init.method]


def _constant(
  scale: float | int, shape: tuple[int, ...], dtype: jnp.dtype
) -> JTensor:
  is_int = jnp.issubdtype(dtype, jnp.integer)
  if is_int and not isinstance(scale, int):
    raise ValueError(
      f'WeightInit.Constant for dtype {dtype} needs an int, got {scale!r}'
    )
  return jnp.full(shape, scale, dtype)


def _uniform(key: PRNGKey, shape: tuple[int, ...], dtype: jnp.dtype) -> JTensor:
  return jax.random.uniform(key, shape, dtype, minval=-1.0, maxval=1.0)


def _truncated(
  key: PRNGKey, shape: tuple[int, ...], dtype: jnp.dtype
) -> JTensor:
  return jax.random.truncated_normal(
    key, -_TRUNCATE_AT, _TRUNCATE_AT, shape, dtype
  )


def _delta_orthogonal(
  key: PRNGKey, shape: tuple[int, ...], dtype: jnp.dtype
) -> JTensor:
  if len(shape) < 2:
    return jax.random.normal(key, shape, dtype)
  if len(shape) == 2:
    return scaled_orthogonal(key, shape, dtype)
  return scaled_delta_orthogonal(key, shape, dtype)


_ScaleFactor = Callable[[tuple[int, ...], int, int], float]
_unscaled: _ScaleFactor = lambda shape, fan_in, fan_out: 1.0
_sqrt_dim: _ScaleFactor = lambda shape, fan_in, fan_out: 1 / math.sqrt(shape[0])
_sqrt_fan_in: _ScaleFactor = lambda shape, fan_in, fan_out: (
  1 / math.sqrt(fan_in)
)
_sqrt_fan_out: _ScaleFactor = lambda shape, fan_in, fan_out: (
  1 / math.sqrt(fan_out)
)
_sqrt_fan_avg: _ScaleFactor = lambda shape, fan_in, fan_out: math.sqrt(
  2 / (fan_in + fan_out)
)
_xavier_bound: _ScaleFactor = lambda shape, fan_in, fan_out: math.sqrt(
  6 / (fan_in + fan_out)
)
_unit_scaling: _ScaleFactor = lambda shape, fan_in, fan_out: math.sqrt(
  3 / math.prod(shape[:-1])
)

_normal = jax.random.normal
# (unit sample, factor from shape and fans) by method.
_SCALED_DISTRIBUTIONS = {
  'gaussian': (_normal, _unscaled),
  'gaussian_sqrt_dim': (_normal, _sqrt_dim),
  'gaussian_sqrt_fanin': (_normal, _sqrt_fan_in),
  'gaussian_sqrt_fanout': (_normal, _sqrt_fan_out),
  'gaussian_sqrt_fanavg': (_normal, _sqrt_fan_avg),
  'uniform': (_uniform, _unscaled),
  'uniform_sqrt_dim': (_uniform, _sqrt_dim),
  'uniform_sqrt_fanavg': (_uniform, _xavier_bound),
  'uniform_unit_scaling': (_uniform, _unit_scaling),
  'xavier': (_uniform, _xavier_bound),
  'truncated_gaussian': (_truncated, _unscaled),
  'truncated_gaussian_sqrt_dim': (_truncated, _sqrt_dim),
  'truncated_gaussian_sqrt_fanin': (_truncated, _sqrt_fan_in),
  'truncated_gaussian_sqrt_fanout': (_truncated, _sqrt_fan_out),
}
