# SPDX-License-Identifier: Apache-2.0
"""Einsum layer with a quantized weight and an optional bias."""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
from jaxtyping import Array, Shaped

from praxis import base_layer
from praxis.alias_names import module_getattr
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers import einsum_equations
from praxis.layers.quantization import quantized_layer_mixin

__getattr__ = module_getattr(__name__)


class Einsum(quantized_layer_mixin.QuantizedLayerMixin):
  """An einsum of inputs and a quantized weight."""

  # Equation of inputs and weight, such as '...d,df->...f'.
  eqn: str = ''
  w_shape: Sequence[int] = ()
  # Whether to add a bias over the output dimensions that the inputs lack; they
  # must be the last ones.
  use_bias: bool = False
  _PACK_4BIT_DIM = 0
  _HAS_BLOCKS = False

  @nn.nowrap
  def _equations(self) -> dict[str, str]:
    return {'w': self.eqn}

  def setup(self) -> None:
    parsed = einsum_equations.Equation.parse(self.eqn)
    x, w, out = parsed.lhs, parsed.rhs, parsed.out
    if '.' in w or len(w) != len(self.w_shape):
      raise ValueError(
        f'w_shape must have a dimension for each letter of {w!r} in '
        f'{self.eqn!r}, got {list(self.w_shape)}'
      )
    split = self.weight_split_dims_mapping.wt
    hparams = WeightHParams(
      shape=self.w_shape,
      fan_in_axes=sorted(w.index(c) for c in set(x) - set(out)),
      fan_out_axes=sorted(w.index(c) for c in set(out) - set(x)),
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=split,
    )
    self.create_variable('w', hparams)
    if not self.use_bias:
      return
    bias_letters = [c for c in out if c not in x]
    if list(out[len(out) - len(bias_letters) :]) != bias_letters:
      raise ValueError(
        f'with use_bias=True {bias_letters} must come last in the output of '
        f'{self.eqn!r}; set use_bias=False'
      )
    dims = [w.index(c) for c in bias_letters]
    bias = WeightHParams(
      shape=[self.w_shape[i] for i in dims],
      init=WeightInit.Constant(0.0),
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=split and [split[i] for i in dims],
    )
    self.create_variable('b', bias)

  def __call__(self, inputs: Shaped[Array, '...']) -> Shaped[Array, '...']:
    """Returns the einsum plus the bias."""
    outputs = self.einsum(self.eqn, inputs, self.theta.w)
    if self.use_bias:
      outputs += self.theta.b
    mapping = self.activation_split_dims_mapping.out
    return base_layer.maybe_shard(outputs, mapping, self.mesh_axis_names)
