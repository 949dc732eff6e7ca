# SPDX-License-Identifier: Apache-2.0
"""Element-wise non-linearities."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer


class BaseActivation(base_layer.BaseLayer):
  """An element-wise function; subclasses say which."""

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    raise NotImplementedError(f'{type(self).__name__} defines no __call__')

  @classmethod
  def get_subclass_by_name(cls, name: str) -> type[BaseActivation]:
    """Returns the direct subclass `name`, whatever its case and underscores.

    Raises:
      KeyError: none, or more than one, has that name.
    """
    wanted = _plain(name)
    found = [
      sub for sub in cls.__subclasses__() if _plain(sub.__name__) == wanted
    ]
    if len(found) != 1:
      known = sorted(sub.__name__ for sub in cls.__subclasses__())
      raise KeyError(
        f'{name!r} must name one activation, found {len(found)}; the names: '
        f'{", ".join(known)}'
      )
    return found[0]


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
  """max(x, 0)², after Primer, https://arxiv.org/abs/2109.08668."""

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jnp.square(jax.nn.relu(inputs))


class CubedReLU(BaseActivation):
  """max(x, 0)³."""

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jax.nn.relu(inputs) ** 3


class LeakyReLU(BaseActivation):
  """x where positive, a fraction of it elsewhere."""

  # The fraction of x that is returned where x is negative.
  negative_slope: float = 0.01

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jax.nn.leaky_relu(inputs, negative_slope=self.negative_slope)


class ELU(BaseActivation):
  """x where positive, exp(x) - 1 elsewhere."""

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
  """x times the normal distribution function of x."""

  # Whether the distribution function is approximated by a tanh.
  approximate: bool = True

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jax.nn.gelu(inputs, approximate=self.approximate)


class SiLU(BaseActivation):
  """x times sigmoid(x)."""

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jax.nn.silu(inputs)


class Swish(BaseActivation):
  """The other name of `SiLU`."""

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    return jax.nn.silu(inputs)


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


def _plain(name: str) -> str:
  return name.replace('_', '').lower()
