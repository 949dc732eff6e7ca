# SPDX-License-Identifier: Apache-2.0
"""An einsum of the input and a weight, with an optional bias."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle
from praxis.alias_names import module_getattr
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers import base_ops

__getattr__ = module_getattr(__name__)


class Einsum(base_layer.BaseLayer):
  """An einsum of the input and a weight: `'...d,df->...f'` is a Linear.

  The weight's fan-in dimensions are those it shares with the input but not the
  output; its fan-out dimensions are those it shares with the output only.
  """

  # `input,weight->output`; the weight has no ellipsis.
  eqn: str = ''
  # The shape of the weight.
  w_shape: Sequence[int] = ()
  # Whether to add a bias over the fan-out dimensions, which then must be the
  # last of the output.
  use_bias: bool = False
  # Computes the einsum; quantized variants replace it.
  einsum_op_tpl: pax_fiddle.Config[base_ops.EinsumOp] = (
    pax_fiddle.template_field(base_ops.EinsumOp)
  )

  def setup(self) -> None:
    x, w, out = self._parse_eqn()
    fan_out = [dim for dim in out if dim in w and dim not in x]
    mapping = self.weight_split_dims_mapping.wt
    self.create_variable(
      'w',
      WeightHParams(
        shape=self.w_shape,
        fan_in_axes=sorted(map(w.index, set(w) & set(x) - set(out))),
        fan_out_axes=sorted(map(w.index, fan_out)),
        mesh_shape=self.mesh_shape,
        tensor_split_dims_mapping=mapping,
      ),
    )
    self.create_child('einsum', self.einsum_op_tpl)
    if not self.use_bias:
      return
    if not fan_out or out[-len(fan_out) :] != ''.join(fan_out):
      raise ValueError(
        f'with use_bias the dimensions {fan_out} that the weight brings must '
        f'be the last of the output, got eqn={self.eqn!r}'
      )
    of_bias = lambda values: values and [values[w.index(d)] for d in fan_out]
    self.create_variable(
      'b',
      WeightHParams(
        shape=of_bias(self.w_shape),
        init=WeightInit.Constant(0.0),
        mesh_shape=self.mesh_shape,
        tensor_split_dims_mapping=of_bias(mapping),
      ),
    )

  def __call__(self, inputs: Float[Array, '...']) -> Float[Array, '...']:
    outputs = self.einsum(self.eqn, inputs, self.theta.w)
    if self.use_bias:
      outputs += self.theta.b
    return self.shard(outputs, self.activation_split_dims_mapping.out)

  def _parse_eqn(self) -> tuple[str, str, str]:
    """Returns the subscripts of input, weight and output."""
    operands, _, out = self.eqn.replace(' ', '').partition('->')
    x, _, w = operands.partition(',')
    if not (x and w.isalpha() and out) or ',' in w:
      raise ValueError(
        f"eqn of Einsum must be 'input,weight->output' with each dimension "
        f"of the weight a letter, as '...d,df->...f'; got {self.eqn!r}"
      )
    if len(w) != len(self.w_shape) or len(set(w)) != len(w):
      raise ValueError(
        f'w_shape must have a size for each of the letters {w!r} of eqn '
        f'{self.eqn!r}, got {list(self.w_shape)}'
      )
    return x, w, out
