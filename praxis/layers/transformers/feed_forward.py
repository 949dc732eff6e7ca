# SPDX-License-Identifier: Apache-2.0
"""The position-wise feed-forward layer of a transformer."""

from __future__ import annotations

from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import activations, linears
from praxis.layers.transformers import activation_summaries, feed_forward_block

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
SplitDimsMapping = pytypes.SplitDimsMapping


class TransformerFeedForward(feed_forward_block.FeedForwardBlock):
  """Norm, two linear layers with an activation between, residual.

  References: Attention Is All You Need, https://arxiv.org/abs/1706.03762,
  section 3.3.
  """

  # Output dimension; 0 for the input's.
  output_dims: int = 0
  has_bias: bool = True
  fflayer_tpl: LayerTpl = pax_fiddle.template_field(linears.FeedForward)
  # Whether outputs are multiplied by the sigmoid of a projection of the inputs
  # to one number.
  use_output_gate: bool = False

  class WeightSharding(base_layer.WeightSharding):
    # The first and the second weight.
    ffn0: SplitDimsMapping = None
    ffn1: SplitDimsMapping = None

  class ActivationSharding(base_layer.ActivationSharding):
    # Outputs of the first and the second linear layer.
    ffn0: SplitDimsMapping = None
    ffn0_extend_step: SplitDimsMapping = None
    ffn1: SplitDimsMapping = None
    ffn1_extend_step: SplitDimsMapping = None

  def setup(self) -> None:
    self._check_dims()
    self._create_norms_and_residual(self._output_dims())
    identity = pax_fiddle.Config(activations.Identity)
    self._is_ffn1_gated = self.use_gated_activation
    first = identity if self.use_gated_activation else self.activation_tpl
    self.create_child('ffn_layer1', self._input_projection('ffn1', first))
    if self.use_gated_activation:
      self.create_child(
        'ffn_layer1_gate',
        self._input_projection('ffn1_gate', self.activation_tpl),
      )
    self.create_child('ffn_layer2', self._output_projection(identity))
    if self.use_output_gate:
      sigmoid = pax_fiddle.Config(activations.Sigmoid)
      self.create_child('output_gate', self._gate_projection(sigmoid))

  def _transform(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Num[Array, '*B'] | None,
    segment_ids: Int[Array, '*B'] | None,
  ) -> Float[Array, '*B Do']:
    if paddings is not None:
      paddings = paddings[..., None]
    outputs = self._compute_ffns(inputs, paddings, None)
    if self.use_output_gate:
      outputs *= self.output_gate(inputs)
    return outputs

  def _compute_ffns(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Num[Array, '*B 1'] | None,
    ap_ff0: SplitDimsMapping = None,
  ) -> Float[Array, '*B Do']:
    """Returns the two linear layers of normalized inputs; for subclasses.

    Args:
      inputs: normalized.
      paddings: 1 for padding; the block zeroes padded outputs itself.
      ap_ff0: sharding of the hidden layer in addition to that of `ffn_layer1`.
    """
    hidden = self.ffn_layer1(inputs)
    if self._is_ffn1_gated:
      hidden = self.ffn_layer1_gate(inputs) * hidden
    hidden = base_layer.maybe_shard(hidden, ap_ff0, self.mesh_axis_names)
    hidden_paddings = None
    if paddings is not None and self._masks_outputs():
      hidden_paddings = paddings[..., 0]
    self._summarize(
      'activation_rms',
      lambda: activation_summaries.rms(hidden, hidden_paddings),
    )
    return self.ffn_layer2(self.relu_dropout(hidden))

  def _input_projection(self, name: str, activation: LayerTpl) -> LayerTpl:
    layer = self._linear(self.input_dims, self.hidden_dims, name, activation)
    outputs = self.activation_split_dims_mapping
    layer.weight_split_dims_mapping.wt = self.weight_split_dims_mapping.ffn0
    layer.activation_split_dims_mapping.out = outputs.ffn0
    layer.activation_split_dims_mapping.extend_step_out = (
      outputs.ffn0_extend_step
    )
    return layer

  def _output_projection(self, activation: LayerTpl) -> LayerTpl:
    output_dims = self._output_dims()
    layer = self._linear(self.hidden_dims, output_dims, 'ffn2', activation)
    outputs = self.activation_split_dims_mapping
    layer.weight_split_dims_mapping.wt = self.weight_split_dims_mapping.ffn1
    layer.activation_split_dims_mapping.out = outputs.ffn1
    layer.activation_split_dims_mapping.extend_step_out = (
      outputs.ffn1_extend_step
    )
    return layer

  def _gate_projection(self, activation: LayerTpl) -> LayerTpl:
    layer = self._linear(self.input_dims, 1, 'output_gate', activation)
    split = self.weight_split_dims_mapping.ffn0
    layer.weight_split_dims_mapping.wt = split and [split[0], None]
    return layer.set(has_bias=False)

  def _linear(
    self, input_dims: int, output_dims: int, name: str, activation: LayerTpl
  ) -> LayerTpl:
    layer = self.fflayer_tpl.clone().set(
      input_dims=input_dims,
      output_dims=output_dims,
      has_bias=self.has_bias,
      activation_tpl=activation.clone(),
      checkpoint_str=name,
    )
    if (init := self._fan_in_init(input_dims)) is not None:
      layer.linear_tpl.params_init = init
    return layer

  def _output_dims(self) -> int:
    return self.output_dims or self.input_dims

  def _check_dims(self) -> None:
    self._check_positive('input_dims', 'hidden_dims')
    if self.add_skip_connection and self._output_dims() != self.input_dims:
      raise ValueError(
        f'output_dims must be input_dims={self.input_dims} with a skip '
        f'connection, got {self.output_dims}; set add_skip_connection=False'
      )
