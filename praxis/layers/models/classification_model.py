# SPDX-License-Identifier: Apache-2.0
"""A classifier of images or videos."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer, base_model, metric_utils, pax_fiddle
from praxis.layers import embedding_softmax, resnets
from praxis.nested_map import NestedMap

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class ClassificationModel(base_model.BaseModel):
  """Predicts the probabilities of V classes for B examples.

  A batch has input_field, label_field, and optionally weight, [B].
  """

  # Maps inputs to features.
  network_tpl: LayerTpl = template_field(resnets.ResNet)
  # Maps features to classes.
  softmax_tpl: LayerTpl = template_field(embedding_softmax.FullSoftmax)
  # The keys in the batch of inputs, and of label probabilities, [B, V].
  input_field: str = 'image'
  label_field: str = 'label_probs'

  def setup(self) -> None:
    self.create_child('network', self.network_tpl.clone())
    self.create_child('softmax', self.softmax_tpl.clone())

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns features, softmax_output, and example_weights [B].

    Raises:
      ValueError: weight has another shape than [B].
    """
    inputs = input_batch[self.input_field]
    size = inputs.shape[0]
    weights = input_batch.get('weight', jnp.ones(size))
    if weights.shape != (size,):
      raise ValueError(f'weight must have shape {(size,)}, got {weights.shape}')
    features = self._features(inputs)
    output = self.softmax(
      features,
      class_weights=weights[:, None],
      class_probabilities=input_batch[self.label_field],
    )
    return NestedMap(
      features=features, softmax_output=output, example_weights=weights
    )

  def compute_loss(
    self, predictions: NestedMap, input_batch: NestedMap
  ) -> tuple[NestedMap, NestedMap]:
    """Returns metrics, and labels and scores of each example.

    Metrics are avg_xent (the loss), num_predictions, accuracy and error, and
    with more than five classes the top-5 metrics acc5 and error5.
    """
    label_probs = input_batch[self.label_field]
    output = predictions.softmax_output
    weight = output.total_weight
    metrics = NestedMap(
      avg_xent=(output.avg_xent, weight),
      num_predictions=(weight, jnp.ones((), weight.dtype)),
    )
    names = {1: ('accuracy', 'error'), 5: ('acc5', 'error5')}
    for k, (accuracy_name, error_name) in names.items():
      if k > 1 and output.logits.shape[-1] <= k:
        continue
      accuracy = metric_utils.top_k_accuracy(
        k,
        output.logits,
        label_probs=label_probs,
        weights=predictions.example_weights,
      )
      metrics[accuracy_name] = (accuracy, weight)
      metrics[error_name] = (1.0 - accuracy, weight)
      self.add_summary(f'acc{k}', accuracy)
    return metrics, NestedMap(labels=label_probs, scores=output.logits)

  def predict(self, input_batch: NestedMap) -> NestedMap:
    """Returns logits and logp, the log-probabilities, [B, V]."""
    features = self._features(input_batch[self.input_field])
    logits = self.softmax.get_logits(features)
    return NestedMap(logits=logits, logp=self.softmax.logits_to_logp(logits))

  def decode(self, input_batch: NestedMap) -> base_model.DecodeOut:
    """Returns (metrics, {}, {}); a classifier generates nothing."""
    predictions = self.compute_predictions(input_batch)
    metrics, _ = self.compute_loss(predictions, input_batch)
    return metrics, NestedMap(), NestedMap()

  def process_decode_out(
    self, input_obj: Any, decode_out: NestedMap
  ) -> base_model.ProcessDecodeOut:
    """Returns ({}, [], {})."""
    return NestedMap(), [], NestedMap()

  def _features(self, inputs: Float[Array, ' B *D']) -> Float[Array, 'B F']:
    """Returns the network's features, averaged over spatial dimensions."""
    features = self.network(inputs)
    return jnp.mean(features, axis=tuple(range(1, features.ndim - 1)))
