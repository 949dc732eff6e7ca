# SPDX-License-Identifier: Apache-2.0
"""The branch of a transformer layer for its own input.

Shapes: B batch, L steps, D model, P dimension of the input of a layer.

References: per-layer embeddings of Gemma 3n and Gemma 4,
https://ai.google.dev/gemma/docs/gemma-3n
"""

from __future__ import annotations

from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle
from praxis.layers import activations, linears, normalizations

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class LayerInputBranch(base_layer.BaseLayer):
  """Adds a projection of the layer's own input, gated by the activations."""

  # D and P.
  model_dims: int = 0
  layer_input_dims: int = 0
  # The projections to the gate [D, P] and of the gated input [P, D].
  gate_tpl: LayerTpl = template_field(linears.Linear)
  proj_tpl: LayerTpl = template_field(linears.Linear)
  # Of the gate.
  activation_tpl: LayerTpl = template_field(activations.GELU)
  # Norm of the projection.
  ln_tpl: LayerTpl = template_field(normalizations.RmsNorm)

  def setup(self) -> None:
    self._check_positive('model_dims', 'layer_input_dims')
    dims, own = self.model_dims, self.layer_input_dims
    for name, template, sizes in (
      ('gate', self.gate_tpl, (dims, own)),
      ('proj', self.proj_tpl, (own, dims)),
    ):
      linear = template.clone().set(input_dims=sizes[0], output_dims=sizes[1])
      self.create_child(name, linear)
    self.create_child('activation', self.activation_tpl.clone())
    self.create_child('ln', self.ln_tpl.clone().set(dim=dims))

  def __call__(
    self,
    inputs: Float[Array, 'B *L D'],
    layer_input: Float[Array, 'B *L P'] | None,
  ) -> Float[Array, 'B *L D']:
    """Returns the inputs plus the norm of the projection.

    Args:
      inputs: activations of the layer.
      layer_input: its own input.

    Raises:
      ValueError: the layer has no input of its own.
    """
    if layer_input is None:
      raise ValueError(
        'layer_inputs must be given to a stack with layer_input_tpl, got None;'
        ' set layer_inputs_tpl of the TransformerLm'
      )
    gated = self.activation(self.gate(inputs)) * layer_input
    return inputs + self.ln(self.proj(gated))
