# SPDX-License-Identifier: Apache-2.0
"""An encoder-decoder with its losses, metrics and generation."""

from __future__ import annotations

from praxis import base_layer, pax_fiddle
from praxis.decoding.hparams import DecoderHParams, GreedyDecoderHParams
from praxis.layers import transformer_models
from praxis.layers.models import sequence_decoding, xent_metrics
from praxis.nested_map import NestedMap

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class SequenceModel(sequence_decoding.SequenceDecoding):
  """Predicts a target sequence from a source sequence.

  A batch has src with ids and paddings, [B, S], and tgt with ids, paddings,
  labels and weights, [B, T]: labels[t] is the target of ids[t]. Packed batches
  have segment_ids and segment_pos in both.
  """

  # The network.
  model_tpl: LayerTpl = pax_fiddle.template_field(
    transformer_models.TransformerEncoderDecoder
  )
  # Whether outputs by example are all that the network predicts.
  return_predictions: bool = False
  # How `decode` generates; its class says by which algorithm.
  decoder_tpl: DecoderHParams = pax_fiddle.instance_field(GreedyDecoderHParams)
  # What labels give to all other classes in training; the softmax's own when
  # absent.
  label_smoothing_prob: float | None = None

  def setup(self) -> None:
    self.create_child(
      'model', smoothed(self.model_tpl, self.label_smoothing_prob)
    )

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns what the network says; see `TransformerEncoderDecoder`."""
    arguments = arguments_of(input_batch)
    if self.model_tpl.packed_input:
      for side, part in (('input', 'src'), ('target', 'tgt')):
        for name in ('segment_ids', 'segment_pos'):
          arguments[f'{side}_{name}'] = input_batch[part][name]
    return self.model(**arguments)

  def compute_loss(
    self, predictions: NestedMap, input_batch: NestedMap
  ) -> tuple[NestedMap, NestedMap]:
    """Returns the metrics, total_loss among them, and outputs by example."""
    return xent_metrics.compute_xent_loss_helper(
      predictions, input_batch.tgt, self.return_predictions
    )

  def encode(self, input_batch: NestedMap) -> NestedMap:
    """Returns the embeddings, [B, S, D], of ids with paddings."""
    embeddings = self.model.encode(input_batch.ids, input_batch.paddings)
    return NestedMap(embeddings=embeddings)


def smoothed(model_tpl: LayerTpl, prob: float | None) -> LayerTpl:
  """Returns a clone whose softmax smooths labels by `prob`, if not None."""
  model = model_tpl.clone()
  if prob is not None:
    model.softmax_tpl.label_smoothing_prob = prob
  return model


def arguments_of(batch: NestedMap) -> NestedMap:
  """Returns the arguments of the network for a batch of src and tgt."""
  return NestedMap(
    inputs=batch.src.ids,
    input_paddings=batch.src.paddings,
    targets=batch.tgt.ids,
    target_paddings=batch.tgt.paddings,
    labels=NestedMap(
      class_ids=batch.tgt.labels, class_weights=batch.tgt.weights
    ),
  )
