# SPDX-License-Identifier: Apache-2.0
"""A float product of low rank beside a quantised one.

References:
  LoRA: Low-Rank Adaptation of Large Language Models,
  https://arxiv.org/abs/2106.09685
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle, pytypes
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers import normalizations
from praxis.layers.quantization.utils import einsum_equations
from praxis.layers.quantization.utils import lora_shapes as lora_utils

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]

_NORMS = (
  normalizations.BatchNorm,
  normalizations.GroupNorm,
  normalizations.LayerNorm,
)


@dataclasses.dataclass(frozen=True)
class Residual:
  """The product that the low-rank one stands beside."""

  equation: str
  weight_shape: Sequence[int]
  split: pytypes.SplitDimsMapping
  # Size of the last dimension of the input and of the output.
  norm_dims: Mapping[str, int]


class LowRankResidual(base_layer.BaseLayer):
  """Adds to a layer's output a product with `w_left` and `w_right`."""

  # Size between the two; the layer as it was when 0.
  lora_rank: int = 0
  # 'one_zero': the left one starts Gaussian with deviation 1, the right one
  # with zeros. 'output_dim': both start Gaussian, by their sizes.
  init_method: str = 'one_zero'
  norm_tpl: LayerTpl = pax_fiddle.template_field(normalizations.LayerNorm)
  # Where to normalise: 'pre', 'mid' or 'post' of the two products; or nowhere.
  norm_order: str | None = None

  # Whether a weight with two contracted dimensions has only the larger of them
  # replaced.
  max_reduction = True

  def _residual(self) -> Residual:
    """Returns what the product is like."""
    raise NotImplementedError

  def setup(self) -> None:
    super().setup()
    if not self.lora_rank:
      return
    product = self._residual()
    *_, left, right, left_dims, right_dims = self._factors(product)
    left_scale, right_scale = self._scales(product)
    mapping = lora_utils.get_left_weight_split_dims_mapping(
      product.split, left_dims
    )
    self.create_variable('w_left', self._factor(left, left_scale, mapping))
    mapping = lora_utils.get_right_weight_split_dims_mapping(
      product.split, right_dims
    )
    self.create_variable('w_right', self._factor(right, right_scale, mapping))
    if self.norm_order is not None:
      self.create_child('norm', self._norm(product))

  def __call__(self, inputs: Float[Array, '...']) -> Float[Array, '...']:
    outputs = super().__call__(inputs)
    if not self.lora_rank:
      return outputs
    to_middle, to_output, *_ = self._factors(self._residual())
    low = self._norm_if('pre', inputs)
    low = jnp.einsum(to_middle, low, self.theta.w_left)
    low = self._norm_if('mid', low)
    low = jnp.einsum(to_output, low, self.theta.w_right)
    return outputs + self._norm_if('post', low)

  def _factors(
    self, product: Residual
  ) -> tuple[str, str, list[int], list[int], list[int], list[int]]:
    return lora_utils.get_lora_shape_and_eqn(
      product.weight_shape,
      self.lora_rank,
      product.equation,
      self.max_reduction,
    )

  def _scales(self, product: Residual) -> tuple[float, float]:
    """Returns the deviations that the two weights start with."""
    if self.init_method == 'one_zero':
      return 1.0, 0.0
    if self.init_method != 'output_dim':
      raise ValueError(
        "init_method must be 'one_zero' or 'output_dim', got "
        f'{self.init_method!r}'
      )
    shape = product.weight_shape
    reduced = einsum_equations.eqn_to_weight_contract_dims(product.equation)
    outputs = math.prod(n for i, n in enumerate(shape) if i not in reduced)
    between = self.lora_rank
    if len(reduced) > 1:
      between *= max(shape[i] for i in reduced)
    return between**-0.5, outputs**-0.5

  def _factor(
    self, shape: list[int], scale: float, mapping: pytypes.SplitDimsMapping
  ) -> WeightHParams:
    return WeightHParams(
      shape=shape,
      init=WeightInit.Gaussian(scale) if scale else WeightInit.Constant(0.0),
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=mapping,
    )

  def _norm(self, product: Residual) -> LayerTpl:
    # What is between the two products may end in a dimension that is kept.
    last = self._factors(product)[0][-1]
    letters = einsum_equations.Equation.parse(product.equation).rhs
    middle = self.lora_rank
    if last in letters:
      middle = product.weight_shape[letters.index(last)]
    sizes = {**product.norm_dims, 'mid': middle}
    if self.norm_order not in sizes:
      raise ValueError(
        f'norm_order must be one of {sorted(sizes)} or None, got '
        f'{self.norm_order!r}'
      )
    if self.norm_tpl.cls not in _NORMS:
      raise ValueError(
        f'norm_tpl must be one of {[c.__name__ for c in _NORMS]}, got '
        f'{self.norm_tpl.cls.__name__}'
      )
    return self.norm_tpl.clone().set(dim=sizes[self.norm_order])

  def _norm_if(self, place: str, x: Array) -> Array:
    return self.norm(x) if self.norm_order == place else x
