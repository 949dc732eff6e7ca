# SPDX-License-Identifier: Apache-2.0
"""The distributions that weights start from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from praxis import pax_fiddle
from praxis.pytypes import JTensor, PRNGKey

_TRUNCATE_AT = 2.0  # standard deviations


@pax_fiddle.register_dataclass
@dataclasses.dataclass(frozen=True)
class WeightInit:
  """A distribution by name (one of the factories below) and its scale."""

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
  def Constant(scale: float | int | bool = 1.0) -> WeightInit:
    """The value `scale` everywhere."""
    return WeightInit('constant', scale)

  @staticmethod
  def TruncatedGaussian(scale: float = 1.0) -> WeightInit:
    """scale * N(0, 1) conditioned to two standard deviations."""
    return WeightInit('truncated_gaussian', scale)

  @staticmethod
  def Xavier(scale: float = 1.0) -> WeightInit:
    """Uniform with bound scale * sqrt(6 / (fan_in + fan_out))."""
    return WeightInit('xavier', scale)

  @staticmethod
  def XavierWithFixupParams(
    scale: float = 1.0,
    depth: float = 1.0,
    layers_per_residual_block: float = 1.0,
  ) -> WeightInit:
    """Xavier shrunk by depth^(-1 / (2 layers_per_residual_block)): Fixup.

    References: https://arxiv.org/abs/1901.09321
    """
    shrink = math.pow(depth, -1.0 / (2 * layers_per_residual_block))
    return WeightInit('xavier', scale * shrink)

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
    """scaled_orthogonal (2-D), scaled_delta_orthogonal (3-D on), Gaussian.

    The scale multiplies all of them (upstream dropped it from 2-D on).
    References: https://arxiv.org/abs/1806.05393
    """
    return WeightInit('delta_orthogonal', scale)


def default_param_init() -> WeightInit:
  """Xavier with scale 1.000001, as upstream checkpoints were made with."""
  return WeightInit.Xavier(1.000001)


def get_fan_in_fan_out(
  shape: Sequence[int],
  fan_in_axes: Sequence[int] | None = None,
  fan_out_axes: Sequence[int] | None = None,
) -> tuple[int | None, int | None]:
  """Returns the fans of a weight: the last two axes times the axes before.

  Explicit axes override that; a vector has both fans equal to its length, a
  scalar has none.
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
  """Whether an initialiser is the one that stands for "not set"."""
  return p == default_param_init()


def scaled_orthogonal(
  key: PRNGKey, shape: Sequence[int], dtype: jnp.dtype = jnp.float32
) -> JTensor:
  """Returns an orthogonal matrix times max(1, sqrt(rows / columns))."""
  scale = max(math.sqrt(shape[-2] / shape[-1]), 1.0)
  return jax.nn.initializers.orthogonal(scale)(key, tuple(shape), dtype)


def scaled_delta_orthogonal(
  key: PRNGKey, shape: Sequence[int], dtype: jnp.dtype = jnp.float32
) -> JTensor:
  """Returns a kernel that is orthogonal in its centre and zero elsewhere.

  References: https://arxiv.org/abs/1806.05393
  """
  if not 3 <= len(shape) <= 5:
    raise ValueError(
      'scaled_delta_orthogonal wants a shape of 3, 4 or 5 dimensions, got '
      f'{tuple(shape)}; scaled_orthogonal takes matrices'
    )
  centre = tuple((n - 1) // 2 for n in shape[:-2])
  matrix = scaled_orthogonal(key, shape[-2:], dtype)
  return jnp.zeros(shape, dtype).at[centre].set(matrix)


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
  if init.method == 'delta_orthogonal':
    return init.scale * _delta_orthogonal(key, shape, dtype)
  unit_sample, _ = _spread_of(init)
  return spread(init, shape, fans) * unit_sample(key, shape, dtype)


def spread(
  init: WeightInit, shape: Sequence[int], fans: tuple[int | None, int | None]
) -> float:
  """Returns what `init` multiplies a unit sample by: a deviation or bound."""
  _, factor = _spread_of(init)
  return init.scale * (factor(tuple(shape), *fans) if shape else 1.0)


def _spread_of(init: WeightInit) -> tuple[Callable[..., JTensor], _Spread]:
  if init.method not in _SPREADS:
    raise ValueError(
      f'unknown WeightInit method {init.method!r}; one of '
      f'{sorted([*_SPREADS, "constant", "delta_orthogonal"])}'
    )
  return _SPREADS[init.method]


def _constant(
  scale: float | int, shape: tuple[int, ...], dtype: jnp.dtype
) -> JTensor:
  is_int = jnp.issubdtype(dtype, jnp.integer)
  if is_int and not isinstance(scale, int):
    raise ValueError(
      f'WeightInit.Constant for dtype {dtype} wants an int, got {scale!r}'
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


_Spread = Callable[[tuple[int, ...], int, int], float]
_one: _Spread = lambda shape, fan_in, fan_out: 1.0
_dim: _Spread = lambda shape, fan_in, fan_out: 1 / math.sqrt(shape[0])
_in: _Spread = lambda shape, fan_in, fan_out: 1 / math.sqrt(fan_in)
_out: _Spread = lambda shape, fan_in, fan_out: 1 / math.sqrt(fan_out)
_avg: _Spread = lambda shape, fan_in, fan_out: math.sqrt(2 / (fan_in + fan_out))
_bound: _Spread = lambda shape, fan_in, fan_out: math.sqrt(
  6 / (fan_in + fan_out)
)
_unit: _Spread = lambda shape, fan_in, fan_out: math.sqrt(
  3 / math.prod(shape[:-1])
)

_normal = jax.random.normal
# Method -> (unit sample, factor from shape and fans).
_SPREADS = {
  'gaussian': (_normal, _one),
  'gaussian_sqrt_dim': (_normal, _dim),
  'gaussian_sqrt_fanin': (_normal, _in),
  'gaussian_sqrt_fanout': (_normal, _out),
  'gaussian_sqrt_fanavg': (_normal, _avg),
  'uniform': (_uniform, _one),
  'uniform_sqrt_dim': (_uniform, _dim),
  'uniform_sqrt_fanavg': (_uniform, _bound),
  'uniform_unit_scaling': (_uniform, _unit),
  'xavier': (_uniform, _bound),
  'truncated_gaussian': (_truncated, _one),
  'truncated_gaussian_sqrt_dim': (_truncated, _dim),
  'truncated_gaussian_sqrt_fanin': (_truncated, _in),
  'truncated_gaussian_sqrt_fanout': (_truncated, _out),
}
