# SPDX-License-Identifier: Apache-2.0
"""The position-wise feed-forward block of a transformer."""

from __future__ import annotations

from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import activations, linears
from praxis.layers.transformers import feed_forward_block

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
SplitDimsMapping = pytypes.SplitDimsMapping


class TransformerFeedForward(feed_forward_block.FeedForwardBlock):
  """Norm, two linear layers with an activation between, residual."""

  # Size of the last dimension of the output: the input's when 0.
  output_dims: int = 0
  has_bias: bool = True
  fflayer_tpl: LayerTpl = pax_fiddle.template_field(linears.FeedForward)

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    # Of the first and of the second weight.
    ffn0: SplitDimsMapping = None
    ffn1: SplitDimsMapping = None

  class ActivationSharding(base_layer.BaseLayer.ActivationSharding):
    # Of what comes out of the first and of the second product.
    ffn0: SplitDimsMapping = None
    ffn0_extend_step: SplitDimsMapping = None
    ffn1: SplitDimsMapping = None
    ffn1_extend_step: SplitDimsMapping = None

  def setup(self) -> None:
    self._check_dims()
    self._create_surroundings(self._output_size())
    identity = pax_fiddle.Config(activations.Identity)
    first = identity if self.use_gated_activation else self.activation_tpl
    self.create_child('ffn_layer1', self._layer0('ffn1', first))
    if self.use_gated_activation:
      self.create_child(
        'ffn_layer1_gate', self._layer0('ffn1_gate', self.activation_tpl)
      )
    self.create_child('ffn_layer2', self._layer1(identity))

  def _transform(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Num[Array, '*B'] | None,
    segment_ids: Int[Array, '*B'] | None,
  ) -> Float[Array, '*B Do']:
    del segment_ids
    hidden = self.ffn_layer1(inputs)
    if self.use_gated_activation:
      hidden = self.ffn_layer1_gate(inputs) * hidden
    self._report(
      'activation_rms', lambda: feed_forward_block.visible_rms(hidden, paddings)
    )
    return self.ffn_layer2(self.relu_dropout(hidden))

  def _layer0(self, name: str, activation: LayerTpl) -> LayerTpl:
    """Returns a layer from the input to the hidden size."""
    layer = self._linear(self.input_dims, self.hidden_dims, name, activation)
    outs = self.activation_split_dims_mapping
    layer.weight_split_dims_mapping.wt = self.weight_split_dims_mapping.ffn0
    layer.activation_split_dims_mapping.out = outs.ffn0
    layer.activation_split_dims_mapping.extend_step_out = outs.ffn0_extend_step
    return layer

  def _layer1(self, activation: LayerTpl) -> LayerTpl:
    """Returns the layer from the hidden to the output size."""
    outputs = self._output_size()
    layer = self._linear(self.hidden_dims, outputs, 'ffn2', activation)
    outs = self.activation_split_dims_mapping
    layer.weight_split_dims_mapping.wt = self.weight_split_dims_mapping.ffn1
    layer.activation_split_dims_mapping.out = outs.ffn1
    layer.activation_split_dims_mapping.extend_step_out = outs.ffn1_extend_step
    return layer

  def _linear(
    self, inputs: int, outputs: int, name: str, activation: LayerTpl
  ) -> LayerTpl:
    layer = self.fflayer_tpl.clone().set(
      input_dims=inputs,
      output_dims=outputs,
      has_bias=self.has_bias,
      activation_tpl=activation.clone(),
      checkpoint_str=name,
    )
    if (init := self._fan_in_init(inputs)) is not None:
      layer.linear_tpl.params_init = init
    return layer

  def _output_size(self) -> int:
    return self.output_dims or self.input_dims

  def _check_dims(self) -> None:
    self._check_positive('input_dims', 'hidden_dims')
    if self.add_skip_connection and self._output_size() != self.input_dims:
      raise ValueError(
        f'output_dims must be input_dims={self.input_dims} with a skip '
        f'connection, got {self.output_dims}; set add_skip_connection=False'
      )
