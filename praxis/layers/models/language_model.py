# SPDX-License-Identifier: Apache-2.0
"""A decoder-only language model with its losses, metrics and generation."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle
from praxis.decoding.hparams import DecoderHParams, GreedyDecoderHParams
from praxis.layers import embedding_softmax, transformer_models
from praxis.layers.models import language_decoding, xent_metrics
from praxis.layers.transformer_models import LanguageModelType
from praxis.nested_map import NestedMap

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class LanguageModel(language_decoding.LanguageDecoding):
  """Predicts each token of a batch from those that it may see.

  A batch has ids, labels, weights and paddings, all [B, T]: labels[t] is the
  target of ids[t]. Packed batches have segment_ids and segment_pos, those of
  prefix models inputs_indicator, 1 in the prefix.
  """

  # The network.
  lm_tpl: LayerTpl = pax_fiddle.template_field(transformer_models.TransformerLm)
  # Whether outputs by example are all that the network predicts.
  return_predictions: bool = False
  # How `decode` generates; its class says by which algorithm.
  decoder_tpl: DecoderHParams = pax_fiddle.instance_field(GreedyDecoderHParams)
  # What a token attends to.
  model_type: LanguageModelType = LanguageModelType.CAUSAL
  # Whether a variable counts the tokens seen in training.
  count_tokens: bool = False
  # Whether weights are multiplied by the batch's eval_sample_weights, [B].
  apply_eval_sample_weights: bool = False
  # Whether metrics have the share of rows without a wrong token.
  report_strict_acc: bool = False

  def setup(self) -> None:
    lm = self.lm_tpl.clone().set(model_type=self.model_type)
    if self._records_logits():
      lm.record_logits_in_xent_output = True
    self.create_child('lm', lm)
    if self.count_tokens:
      counter = pax_fiddle.Config(embedding_softmax.TokenCounter)
      self.create_child('token_counter', counter)

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns what the network says of the batch; see `TransformerLm`."""
    paddings = self._paddings(input_batch)
    if self.count_tokens:
      self.token_counter(input_batch.ids, paddings)
    labels = NestedMap(
      class_ids=input_batch.labels,
      class_weights=xent_metrics.label_weights(
        input_batch, self.apply_eval_sample_weights
      ),
    )
    segments = {}
    if self.lm_tpl.packed_input:
      for name in ('segment_ids', 'segment_pos'):
        segments[name] = _require(input_batch, name, 'a packed_input model')
    if self.model_type == LanguageModelType.PREFIX:
      indicator = _require(input_batch, 'inputs_indicator', 'a prefix model')
      segments['causal_attention_mask'] = 1 - indicator
    if 'segment_mask' in input_batch:
      segments['segment_mask'] = input_batch.segment_mask
    return self.lm(input_batch.ids, paddings, labels=labels, **segments)

  def compute_loss(
    self, predictions: NestedMap, input_batch: NestedMap
  ) -> tuple[NestedMap, NestedMap]:
    """Returns the metrics, total_loss among them, and outputs by example."""
    return xent_metrics.compute_xent_loss_helper(
      predictions,
      input_batch,
      self.return_predictions,
      self.apply_eval_sample_weights,
      self.report_strict_acc,
    )

  def _records_logits(self) -> bool:
    """Returns whether predictions have the logits."""
    return self.return_predictions

  def _paddings(self, batch: NestedMap) -> Float[Array, 'B T']:
    if 'paddings' in batch:
      return batch.paddings
    return jnp.zeros(batch.ids.shape, self.fprop_dtype)


def _require(batch: NestedMap, name: str, why: str) -> Array:
  if name not in batch:
    raise ValueError(f'the batch of {why} needs {name!r}, got {sorted(batch)}')
  return batch[name]
