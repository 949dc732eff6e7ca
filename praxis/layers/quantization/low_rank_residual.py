# SPDX-License-Identifier: Apache-2.0
"""Low-rank float residuals of quantized layers (LoRA).

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
from praxis.layers import einsum_equations, normalizations
from praxis.layers.quantization.utils import lora_shapes

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]

_NORMS = (
  normalizations.BatchNorm,
  normalizations.GroupNorm,
  normalizations.LayerNorm,
)


@dataclasses.dataclass(frozen=True)
class BaseEinsum:
  """The einsum to which the low-rank residual is added."""

  equation: str
  weight_shape: Sequence[int]
  split: pytypes.SplitDimsMapping
  # Sizes of the last dimension of the input ('pre') and output ('post').
  norm_dims: Mapping[str, int]


class LowRankResidual(base_layer.BaseLayer):
  """Adds the product of inputs, `w_left` and `w_right` to a layer's output.

  References: LoRA, section 4.1, https://arxiv.org/abs/2106.09685
  """

  # Rank; 0: no residual.
  lora_rank: int = 0
  # 'one_zero': w_left ~ N(0, 1), w_right = 0. 'output_dim': Gaussian with
  # standard deviations rank**-0.5 and output_dim**-0.5.
  init_method: str = 'one_zero'
  norm_tpl: LayerTpl = pax_fiddle.template_field(normalizations.LayerNorm)
  # Position of the normalization: 'pre', 'mid' or 'post' of the two einsums;
  # None: no normalization.
  norm_order: str | None = None

  # Whether only the larger of two contracted dimensions is replaced.
  max_reduction = True

  def _base_einsum(self) -> BaseEinsum:
    """Returns the einsum of the layer."""
    raise NotImplementedError

  def setup(self) -> None:
    super().setup()
    if not self.lora_rank:
      return
    base = self._base_einsum()
    *_, left, right, left_dims, right_dims = self._factors(base)
    left_scale, right_scale = self._scales(base)
    mapping = lora_shapes.get_left_weight_split_dims_mapping(
      base.split, left_dims
    )
    self.create_variable('w_left', self._factor(left, left_scale, mapping))
    mapping = lora_shapes.get_right_weight_split_dims_mapping(
      base.split, right_dims
    )
    self.create_variable('w_right', self._factor(right, right_scale, mapping))
    if self.norm_order is not None:
      self.create_child('norm', self._norm(base))

  def __call__(self, inputs: Float[Array, '...']) -> Float[Array, '...']:
    outputs = super().__call__(inputs)
    if not self.lora_rank:
      return outputs
    to_middle, to_output, *_ = self._factors(self._base_einsum())
    low = self._norm_if('pre', inputs)
    low = jnp.einsum(to_middle, low, self.theta.w_left)
    low = self._norm_if('mid', low)
    low = jnp.einsum(to_output, low, self.theta.w_right)
    return outputs + self._norm_if('post', low)

  def _factors(
    self, base: BaseEinsum
  ) -> tuple[str, str, list[int], list[int], list[int], list[int]]:
    return lora_shapes.get_lora_shape_and_eqn(
      base.weight_shape,
      self.lora_rank,
      base.equation,
      self.max_reduction,
    )

  def _scales(self, base: BaseEinsum) -> tuple[float, float]:
    """Returns the initial standard deviations of the two factors."""
    if self.init_method == 'one_zero':
      return 1.0, 0.0
    if self.init_method != 'output_dim':
      raise ValueError(
        "init_method must be 'one_zero' or 'output_dim', got "
        f'{self.init_method!r}'
      )
    shape = base.weight_shape
    reduced = einsum_equations.eqn_to_weight_contract_dims(base.equation)
    outputs = math.prod(n for i, n in enumerate(shape) if i not in reduced)
    inner = self.lora_rank
    if len(reduced) > 1:
      inner *= max(shape[i] for i in reduced)
    return inner**-0.5, outputs**-0.5

  def _factor(
    self, shape: list[int], scale: float, mapping: pytypes.SplitDimsMapping
  ) -> WeightHParams:
    return WeightHParams(
      shape=shape,
      init=WeightInit.Gaussian(scale) if scale else WeightInit.Constant(0.0),
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=mapping,
    )

  def _norm(self, base: BaseEinsum) -> LayerTpl:
    # The intermediate result may end in a dimension of the weight.
    last = self._factors(base)[0][-1]
    letters = einsum_equations.Equation.parse(base.equation).rhs
    middle = self.lora_rank
    if last in letters:
      middle = base.weight_shape[letters.index(last)]
    sizes = {**base.norm_dims, 'mid': middle}
    if self.norm_order not in sizes:
      raise ValueError(
        f'norm_order must be one of {sorted(sizes)} or None, got '
        f'{self.norm_order!r}'
      )
    if self.norm_tpl.cls not in _NORMS:
      raise NotImplementedError(
        f'norm_tpl must be one of {[c.__name__ for c in _NORMS]}, got '
        f'{self.norm_tpl.cls.__name__}'
      )
    return self.norm_tpl.clone().set(dim=sizes[self.norm_order])

  def _norm_if(self, position: str, x: Array) -> Array:
    return self.norm(x) if self.norm_order == position else x
