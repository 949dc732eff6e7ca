# SPDX-License-Identifier: Apache-2.0
"""A multilayer perceptron on embedded tokens, for benchmarks."""

from __future__ import annotations

import jax.numpy as jnp

from praxis import base_layer, base_model, pax_fiddle
from praxis.layers import embedding_softmax, linears
from praxis.nested_map import NestedMap

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class ClassificationMLPModel(base_model.BaseModel):
  """Predicts labels from single tokens, in batches of `LanguageModel`."""

  # The network.
  mlp_tpl: LayerTpl = template_field(linears.MLPBlock)
  # The embedding of tokens and softmax over labels.
  softmax_tpl: LayerTpl = template_field(
    embedding_softmax.SharedEmbeddingSoftmax
  )

  def setup(self) -> None:
    softmax = self.softmax_tpl.clone()
    if not softmax.input_dims:
      softmax.input_dims = self.mlp_tpl.ff_tpl.output_dims
    self.create_child('mlp_layers_0', self.mlp_tpl.clone())
    self.create_child('softmax', softmax)

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns the outputs of the softmax for the batch's labels."""
    hidden = self.mlp_layers_0(self.softmax.emb_lookup(input_batch.ids))
    return self.softmax(
      hidden,
      class_weights=input_batch.weights[..., None],
      class_ids=input_batch.labels[..., None],
    )

  def compute_loss(
    self, predictions: NestedMap, input_batch: NestedMap
  ) -> tuple[NestedMap, NestedMap]:
    """Returns metrics with total_loss, the mean cross entropy in nats."""
    weight = predictions.total_weight
    metrics = NestedMap(
      total_loss=(predictions.avg_xent, weight),
      avg_xent=(predictions.avg_xent, weight),
      accuracy=(predictions.accuracy, weight),
      num_predictions=(weight, jnp.ones_like(weight)),
    )
    return metrics, NestedMap(labels=input_batch.labels)
