# SPDX-License-Identifier: Apache-2.0
"""Layers fine-tuned by low-rank adaptation (LoRA, arXiv:2106.09685).

The weight `w` is read as w + A Bᵀ, where B starts at zero. A learner that
freezes `w` trains `lora_a` and `lora_b` only.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer
from praxis.alias_names import module_getattr
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers import attentions, linears

__getattr__ = module_getattr(__name__)


class LoraTheta(base_layer.Theta):
  """The weights of a layer by name; `w` includes the low-rank update."""

  def __getattr__(self, name: str) -> Array:
    weight = super().__getattr__(name)
    if name != 'w':
      return weight
    a, b = super().__getattr__('lora_a'), super().__getattr__('lora_b')
    return weight + self.module._low_rank(a, b).reshape(weight.shape)

  def __getitem__(self, name: str) -> Array:
    return getattr(self, name)


class LoraThetaDescriptor(base_layer.ThetaDescriptor):
  """Makes `layer.theta` a LoraTheta."""

  def __get__(self, layer: Any, owner: type | None = None) -> Any:
    return self if layer is None else LoraTheta(layer)


class LowRankAdaptation(base_layer.BaseLayer):
  """Adds a low-rank update to the weight `w` of the layer it is mixed into."""

  # The rank of the update.
  rank: int = 0
  # The initializer of A; None: that of `w`.
  lora_init: WeightInit | None = None

  theta = LoraThetaDescriptor()

  def setup(self) -> None:
    super().setup()
    if self.rank <= 0:
      raise ValueError(
        f'{type(self).__name__} {self.name!r} needs rank > 0, got {self.rank}'
      )
    *stacked, inputs, outputs = self._lora_sizes()
    init = self.lora_init or self._declared('w').init
    self._create_factor('lora_a', [*stacked, inputs, self.rank], init)
    zero = WeightInit.Constant(0.0)
    self._create_factor('lora_b', [*stacked, outputs, self.rank], zero)

  def _lora_sizes(self) -> list[int]:
    """Returns the shape of `w`, its heads and head dimension as one."""
    raise NotImplementedError(f'{type(self).__name__} has no _lora_sizes')

  def _low_rank(
    self, a: Float[Array, '*K I R'], b: Float[Array, '*K O R']
  ) -> Float[Array, '*K I O']:
    """Returns the update in the layout of `w`."""
    return jnp.einsum('...ir,...or->...io', a, b)

  def _create_factor(
    self, name: str, shape: list[int], init: WeightInit | None
  ) -> None:
    hparams = WeightHParams(
      shape=shape,
      init=init,
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=[None] * len(shape),
    )
    self.create_variable(name, hparams)


class LoraLinear(LowRankAdaptation, linears.Linear):
  """A linear layer with a low-rank update of its weight."""

  def _lora_sizes(self) -> list[int]:
    return [self.input_dims, self.output_dims]


class LoraAttentionProjection(
  LowRankAdaptation, attentions.AttentionProjection
):
  """A projection to or from heads with a low-rank update of its weight."""

  def _lora_sizes(self) -> list[int]:
    return [self.input_dim, self.num_heads * self.dim_per_head]

  def _low_rank(
    self, a: Float[Array, 'I R'], b: Float[Array, 'O R']
  ) -> Float[Array, '...']:
    if self.is_output_projection and self.use_nhd_shape:
      a, b = b, a
    return super()._low_rank(a, b)


class LoraCombinedQKVProjection(
  LowRankAdaptation, attentions.CombinedQKVProjectionLayer
):
  """Projects to queries, keys and values, with a low-rank update of each."""

  def _lora_sizes(self) -> list[int]:
    return [3, self.input_dim, self.num_heads * self.dim_per_head]
