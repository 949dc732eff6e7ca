# SPDX-License-Identifier: Apache-2.0
"""Element-wise activation functions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer
from praxis.alias_names import module_getattr

__getattr__ = module_getattr(__name__)


class BaseActivation(base_layer.BaseLayer):
  """Base of element-wise activation functions."""

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    raise NotImplementedError(f'{type(self).__name__} defines no __call__')

  @classmethod
  def get_subclass_by_name(cls, name: str) -> type[BaseActivation]:
    """Returns the direct subclass `name`, ignoring case and underscores.

    Raises:
      KeyError: the number of subclasses with that name is not 1.
    """
    matches = [
      sub
      for sub in cls.__subclasses__()
      if _normalize(sub.__name__) == _normalize(name)
    ]
    if len(matches) != 1:
      known = sorted(sub.__name__ for sub in cls.__subclasses__())
      raise KeyError(
        f'{name!r} must name one activation, found {len(matches)}; the names: '
        f'{", ".join(known)}'
      )
    return matches[0]


class ReLU(BaseActivation):
  """max(x, 0)."""

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jax.nn.relu(inputs)


class SineReLU(BaseActivation):
  """sin(max(x, 0))."""

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jnp.sin(jax.nn.relu(inputs))


class ReLU6(BaseActivation):
  """min(max(x, 0), 6)."""

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jax.nn.relu6(inputs)


class SquaredReLU(BaseActivation):
  """max(x, 0)² (Primer, https://arxiv.org/abs/2109.08668)."""

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jnp.square(jax.nn.relu(inputs))


class CubedReLU(BaseActivation):
  """max(x, 0)³."""

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jax.nn.relu(inputs) ** 3


class LeakyReLU(BaseActivation):
  """x for x >= 0, negative_slope * x otherwise."""

  # The slope for negative x.
  negative_slope: float = 0.01

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jax.nn.leaky_relu(inputs, negative_slope=self.negative_slope)


class ELU(BaseActivation):
  """x for x > 0, exp(x) - 1 otherwise.

  References: https://arxiv.org/abs/1511.07289
  """

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jax.nn.elu(inputs)


class Sigmoid(BaseActivation):
  """1 / (1 + exp(-x))."""

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jax.nn.sigmoid(inputs)


class Tanh(BaseActivation):
  """The hyperbolic tangent."""

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jnp.tanh(inputs)


class GELU(BaseActivation):
  """x Φ(x), with the Gaussian distribution function Φ.

  References: https://arxiv.org/abs/1606.08415
  """

  # Whether to use the tanh approximation.
  approximate: bool = True

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jax.nn.gelu(inputs, approximate=self.approximate)


class SiLU(BaseActivation):
  """x * sigmoid(x).

  References: https://arxiv.org/abs/1702.03118
  """

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jax.nn.silu(inputs)


class Swish(BaseActivation):
  """x * sigmoid(beta * x); with beta=1 the same as `SiLU`.

  References: https://arxiv.org/abs/1710.05941
  """

  # 1.702 approximates the GELU.
  beta: float = 1.0

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return inputs * jax.nn.sigmoid(self.beta * inputs)


class Softplus(BaseActivation):
  """log(1 + exp(x))."""

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jax.nn.softplus(inputs)


class Exp(BaseActivation):
  """exp(x)."""

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jnp.exp(inputs)


class Identity(BaseActivation):
  """x."""

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return inputs


def _normalize(name: str) -> str:
  return name.replace('_', '').lower()
