# SPDX-License-Identifier: Apache-2.0
"""An encoder-decoder model: loss, metrics and decoding."""

from __future__ import annotations

from typing import Any

from praxis import base_layer, base_model, pax_fiddle
from praxis.decoding import hparams as decoder_hparams
from praxis.decoding.hparams import DecoderHParams, GreedyDecoderHParams
from praxis.layers import transformer_models
from praxis.layers.models import (
  decode_output,
  sequence_model_decoder,
  xent_metrics,
)
from praxis.nested_map import NestedMap

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class SequenceModel(base_model.BaseModel):
  """Predicts a target sequence from a source sequence.

  A batch has src with ids and paddings, [B, S], and tgt with ids, paddings,
  labels and weights, [B, T]: labels[t] is the target of ids[t]. Packed batches
  have segment_ids and segment_pos in both.
  """

  # The network.
  model_tpl: LayerTpl = pax_fiddle.template_field(
    transformer_models.TransformerEncoderDecoder
  )
  # Whether the per-example output is all predictions of the network.
  return_predictions: bool = False
  # Settings of `decode`; their class selects the algorithm.
  decoder_tpl: DecoderHParams = pax_fiddle.instance_field(GreedyDecoderHParams)
  # The label smoothing of training; None: the softmax's own.
  label_smoothing_prob: float | None = None

  def setup(self) -> None:
    self.create_child(
      'model', with_label_smoothing(self.model_tpl, self.label_smoothing_prob)
    )

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns the outputs of the network; see `TransformerEncoderDecoder`."""
    inputs = network_inputs(input_batch)
    if self.model_tpl.packed_input:
      for side, key in (('input', 'src'), ('target', 'tgt')):
        for name in ('segment_ids', 'segment_pos'):
          inputs[f'{side}_{name}'] = input_batch[key][name]
    return self.model(**inputs)

  def compute_loss(
    self, predictions: NestedMap, input_batch: NestedMap
  ) -> tuple[NestedMap, NestedMap]:
    """Returns metrics with total_loss, and the per-example output."""
    return xent_metrics.compute_xent_loss_helper(
      predictions, input_batch.tgt, self.return_predictions
    )

  def encode(self, input_batch: NestedMap) -> NestedMap:
    """Returns the embeddings, [B, S, D], of ids with paddings."""
    embeddings = self.model.encode(input_batch.ids, input_batch.paddings)
    return NestedMap(embeddings=embeddings)

  def decode(self, input_batch: NestedMap) -> base_model.DecodeOut:
    """Generates targets of a batch's sources with the settings `decoder_tpl`.

    DECODE_CACHE must be mutable. Sources are src.ids and src.paddings. A target
    begins with the first prefix_lengths of tgt.ids if the batch has that field,
    else with the first. In a beam search it begins with the first always.

    Returns:
      ({'num_decoded'}, the batch with the result of the algorithm, {}).
    """
    return self.decode_with_params(input_batch, self.decoder_tpl)

  def decode_with_params(
    self, input_batch: NestedMap, decoder_params: DecoderHParams
  ) -> base_model.DecodeOut:
    """Returns what `decode` does, with the settings `decoder_params`."""
    decoder_params = decoder_hparams.check_supported(decoder_params)
    data = sequence_model_decoder.prepare_decode_data(input_batch)
    if getattr(decoder_params, 'cf_guidance_scale', None) is not None:
      data = self._prepare_guidance_decode_data(data)
    decoder = sequence_model_decoder.SequenceModelDecoder(
      model=self, hparams=decoder_params, data=data
    )
    result = decoder.decode(input_batch)
    metrics = decode_output.num_decoded_metrics(
      input_batch, input_batch.tgt.ids.shape[0]
    )
    return metrics, NestedMap(**{**input_batch, **result}), NestedMap()

  def process_decode_out(
    self, input_obj: Any, decode_out: NestedMap
  ) -> base_model.ProcessDecodeOut:
    """Detokenizes decoded ids; see `decode_output.process_seq2seq_output`."""
    return decode_output.process_seq2seq_output(input_obj, decode_out)

  def _prepare_guidance_decode_data(self, decode_data: NestedMap) -> NestedMap:
    """Returns data of 2 B examples: each with, then without its condition.

    A hook: subclasses define what an example without its condition is, and may
    add encoder_output; see `sequence_model_decoder.prepare_decode_data`.
    """
    raise NotImplementedError(
      f'{type(self).__name__} does not support guidance; define '
      '_prepare_guidance_decode_data, or set cf_guidance_scale=None'
    )


def with_label_smoothing(model_tpl: LayerTpl, prob: float | None) -> LayerTpl:
  """Returns a clone whose softmax smooths labels by `prob`, if not None."""
  model = model_tpl.clone()
  if prob is not None:
    model.softmax_tpl.label_smoothing_prob = prob
  return model


def network_inputs(batch: NestedMap) -> NestedMap:
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
