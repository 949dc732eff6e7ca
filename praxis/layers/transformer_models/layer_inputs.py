# SPDX-License-Identifier: Apache-2.0
"""Inputs of each layer of a stack, from the tokens and their embeddings.

Shapes: B batch, L steps, V vocabulary, D model, N layers, P dimension of the
input of a layer.

References: per-layer embeddings of Gemma 3n and Gemma 4,
https://ai.google.dev/gemma/docs/gemma-3n
"""

from __future__ import annotations

from jaxtyping import Array, Float, Int

from praxis import base_layer, pax_fiddle
from praxis.layers import embedding_softmax, linears, normalizations

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class LayerInputs(base_layer.BaseLayer):
  """Sums an embedding of each token and a normalized projection, over √2."""

  # V, D, N and P.
  vocab_size: int = 0
  model_dims: int = 0
  num_layers: int = 0
  layer_input_dims: int = 0
  # The embedding [V, N·P], which is multiplied by √P.
  embedding_tpl: LayerTpl = template_field(embedding_softmax.Embedding)
  # The projection [D, N·P] of the model's embeddings, which is divided by √D.
  proj_tpl: LayerTpl = template_field(linears.Linear)
  # Norm of the projection for each layer.
  ln_tpl: LayerTpl = template_field(normalizations.RmsNorm)

  def setup(self) -> None:
    self._check_positive(
      'vocab_size', 'model_dims', 'num_layers', 'layer_input_dims'
    )
    dims = self.num_layers * self.layer_input_dims
    embedding = self.embedding_tpl.clone().set(
      num_classes=self.vocab_size,
      input_dims=dims,
      embedding_scale=self.layer_input_dims**0.5,
    )
    self.create_child('embedding', embedding)
    proj = self.proj_tpl.clone()
    self.create_child(
      'proj', proj.set(input_dims=self.model_dims, output_dims=dims)
    )
    ln = self.ln_tpl.clone().set(dim=self.layer_input_dims)
    self.create_child('ln', ln)

  def __call__(
    self, ids: Int[Array, ' B *L'], embedded: Float[Array, 'B *L D']
  ) -> Float[Array, 'B *L N P']:
    """Returns the inputs of all layers.

    Args:
      ids: of the tokens.
      embedded: inputs of the first layer.
    """
    of_layers = (*ids.shape, self.num_layers, self.layer_input_dims)
    projected = self.proj(embedded) * self.model_dims**-0.5
    projected = self.ln(projected.reshape(of_layers))
    of_tokens = self.embedding.emb_lookup(ids).reshape(of_layers)
    return (projected + of_tokens) * 0.5**0.5
