# SPDX-License-Identifier: Apache-2.0
"""The position-wise feed-forward block of a transformer."""

from __future__ import annotations

import math

from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import activations, linears, normalizations, stochastics
from praxis.layers.transformers import residual

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
SplitDimsMapping = pytypes.SplitDimsMapping
template_field = pax_fiddle.template_field


class TransformerFeedForward(base_layer.BaseLayer):
  """Norm, two linear layers with an activation between, residual."""

  # Sizes of the last dimension: of the input, of the output (the input's when
  # 0), and in between.
  input_dims: int = 0
  output_dims: int = 0
  hidden_dims: int = 0
  has_bias: bool = True
  # Whether padding is zeroed in the input and not in the output.
  apply_padding_first: bool = False
  activation_tpl: LayerTpl = template_field(activations.ReLU)
  # Whether the activation is that of a second product, which multiplies the
  # first.
  use_gated_activation: bool = False
  fflayer_tpl: LayerTpl = template_field(linears.FeedForward)
  ln_tpl: LayerTpl = template_field(normalizations.LayerNorm)
  # Dropout of the output and of what is between the two products.
  residual_dropout_prob: float = 0.0
  relu_dropout_tpl: LayerTpl = template_field(stochastics.Dropout)
  relu_dropout_prob: float = 0.0
  residual_dropout_tpl: LayerTpl = template_field(stochastics.Dropout)
  # Whether the input is added, and the factor of what it is added to.
  add_skip_connection: bool = True
  residual_weight: float = 1.0
  # Probability that an example skips the block.
  residual_droppath_prob: float = 0.0
  # Where to normalise; see residual.py.
  norm_policy: str = 'pre'
  # Whether weights start uniform with the variance 1 / fan_in.
  internal_gshard_variance_scaling_fan_in_init: bool = False

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
    residual.check_norm_policy(self.norm_policy)
    self._check_dims()
    residual.create_norms(
      self, self.ln_tpl, self.input_dims, self._output_size(), 'layer_norm'
    )
    identity = pax_fiddle.Config(activations.Identity)
    first = identity if self.use_gated_activation else self.activation_tpl
    self.create_child('ffn_layer1', self._layer0('ffn1', first))
    if self.use_gated_activation:
      self.create_child(
        'ffn_layer1_gate', self._layer0('ffn1_gate', self.activation_tpl)
      )
    self.create_child('ffn_layer2', self._layer1(identity))
    self.create_child(
      'relu_dropout',
      self.relu_dropout_tpl.clone().set(keep_prob=1.0 - self.relu_dropout_prob),
    )
    self.create_child(
      'residual_dropout',
      self.residual_dropout_tpl.clone().set(
        keep_prob=1.0 - self.residual_dropout_prob
      ),
    )
    if self.residual_droppath_prob > 0.0:
      self.create_child(
        'residual_droppath',
        residual.droppath(self.residual_droppath_prob, self.residual_weight),
      )

  def __call__(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Num[Array, '*B'] | None = None,
    segment_ids: Int[Array, '*B'] | None = None,
  ) -> Float[Array, '*B Do']:
    """Returns the block's output, where `paddings` is 1 zero plus residual.

    Padding is zeroed once, in the output or in the input: what is between them
    is computed position by position.
    """
    del segment_ids
    visible = None if paddings is None else (1 - paddings).astype(inputs.dtype)
    if self.apply_padding_first and visible is not None:
      inputs = inputs * visible[..., None]
    outputs = residual.norm_before(self, inputs, paddings)
    outputs = self.ffn_layer2(self.relu_dropout(self._hidden(outputs)))
    if not self.apply_padding_first and visible is not None:
      outputs = outputs * visible[..., None]
    outputs = residual.norm_after(self, outputs, paddings)
    outputs = self.residual_dropout(outputs)
    if self.add_skip_connection:
      outputs = self._add(inputs, outputs)
    return residual.norm_skip(self, outputs, paddings)

  def extend_step(
    self,
    inputs: Float[Array, '*B D'],
    *,
    time_step: pytypes.JTensor | int | None = None,
  ) -> Float[Array, '*B Do']:
    """Returns the output of one decoding step, which `__call__` gives too."""
    del time_step
    return self(inputs)

  def _hidden(self, inputs: Float[Array, '*B D']) -> Float[Array, '*B F']:
    hidden = self.ffn_layer1(inputs)
    if self.use_gated_activation:
      return self.ffn_layer1_gate(inputs) * hidden
    return hidden

  def _add(
    self, inputs: Float[Array, '*B D'], outputs: Float[Array, '*B D']
  ) -> Float[Array, '*B D']:
    if self.residual_droppath_prob > 0.0:
      return self.residual_droppath(inputs, outputs)
    if self.residual_weight != 1.0:
      outputs = outputs * self.residual_weight
    return inputs + outputs

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
    if self.internal_gshard_variance_scaling_fan_in_init:
      bound = math.sqrt(3.0 / inputs)
      layer.linear_tpl.params_init = base_layer.WeightInit.Uniform(bound)
    return layer

  def _output_size(self) -> int:
    return self.output_dims or self.input_dims

  def _check_dims(self) -> None:
    if self.input_dims <= 0 or self.hidden_dims <= 0:
      raise ValueError(
        'input_dims and hidden_dims must be positive, got '
        f'{self.input_dims} and {self.hidden_dims}'
      )
    if self.add_skip_connection and self._output_size() != self.input_dims:
      raise ValueError(
        f'output_dims must be input_dims={self.input_dims} with a skip '
        f'connection, got {self.output_dims}; set add_skip_connection=False'
      )
