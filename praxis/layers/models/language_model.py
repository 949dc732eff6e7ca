# SPDX-License-Identifier: Apache-2.0
"""A decoder-only language model: loss, metrics and decoding."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array

from praxis import base_layer, base_model, pax_fiddle
from praxis.decoding import hparams as decoder_hparams
from praxis.decoding import streaming
from praxis.decoding.hparams import (
  DecoderHParams,
  FlatBeamSearchHParams,
  GreedyDecoderHParams,
)
from praxis.layers import decode_states, embedding_softmax, transformer_models
from praxis.layers.models import (
  decode_output,
  decode_prompts,
  language_model_decoder,
  xent_metrics,
)
from praxis.layers.transformer_models import LanguageModelType
from praxis.nested_map import NestedMap

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class LanguageModel(base_model.BaseModel):
  """Predicts each token of a sequence from its context.

  A batch has ids, labels, weights and paddings, all [B, T]: labels[t] is the
  target of ids[t]. Packed batches have segment_ids and segment_pos; those of
  prefix models have inputs_indicator, 1 in the prefix.
  """

  # The network.
  lm_tpl: LayerTpl = pax_fiddle.template_field(transformer_models.TransformerLm)
  # Whether the per-example output is all predictions of the network.
  return_predictions: bool = False
  # Settings of `decode`; their class selects the algorithm.
  decoder_tpl: DecoderHParams = pax_fiddle.instance_field(GreedyDecoderHParams)
  # The attention pattern: causal, prefix or bidirectional.
  model_type: LanguageModelType = LanguageModelType.CAUSAL
  # Whether a variable counts the tokens seen in training.
  count_tokens: bool = False
  # Whether weights are multiplied by the batch's eval_sample_weights, [B].
  apply_eval_sample_weights: bool = False
  # Whether metrics have the share of sequences without a wrong token.
  report_strict_acc: bool = False

  def setup(self) -> None:
    self.create_child('lm', self._network_tpl())
    if self.count_tokens:
      counter = pax_fiddle.Config(embedding_softmax.TokenCounter)
      self.create_child('token_counter', counter)

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns the outputs of the network for a batch; see `TransformerLm`."""
    if self.count_tokens:
      self.token_counter(input_batch.ids, self._paddings(input_batch))
    return self._apply_network(self.lm, input_batch)

  def compute_loss(
    self, predictions: NestedMap, input_batch: NestedMap
  ) -> tuple[NestedMap, NestedMap]:
    """Returns metrics with total_loss, and the per-example output."""
    return xent_metrics.compute_xent_loss_helper(
      predictions,
      input_batch,
      self.return_predictions,
      self.apply_eval_sample_weights,
      self.report_strict_acc,
    )

  def decode(
    self,
    input_batch: NestedMap,
    result_callback: streaming.StreamingResultCallback | None = None,
    return_result_for_suffix_score: bool = False,
  ) -> base_model.DecodeOut:
    """Continues the prompts of a batch with the settings `decoder_tpl`.

    DECODE_CACHE must be mutable. A prompt is the first prefix_lengths ids if
    the batch has that field, else the ids that are not padding; for a prefix
    model, those in inputs_indicator. Sampling reads these optional fields of
    the batch, one value per example: temperature, per_example_top_k,
    per_example_top_p, per_example_max_decode_steps, eos_id (stop sequences),
    gumbel_prng_key, cf_guidance_scale, num_per_token_logprobs,
    return_entropy_score and enforce_sample_constraints (`SamplingOptions`).

    Args:
      input_batch: ids [B, P], paddings, and the fields above.
      result_callback: streams sampled tokens to the host.
      return_result_for_suffix_score: whether the result is the final state of
        the decode loop, from which suffixes can be scored.

    Returns:
      ({'num_decoded'}, the result of the algorithm with the batch, {}). The
      prefix_lengths of a batch that has them are the batch's, [B].
    """
    return self.decode_with_params(
      self.decoder_tpl,
      input_batch,
      result_callback=result_callback,
      return_result_for_suffix_score=return_result_for_suffix_score,
    )

  def decode_with_params(
    self,
    decoder_params: DecoderHParams,
    input_batch: NestedMap,
    result_callback: streaming.StreamingResultCallback | None = None,
    return_result_for_suffix_score: bool = False,
  ) -> base_model.DecodeOut:
    """Returns what `decode` does, with the settings `decoder_params`.

    Args:
      decoder_params: override `decoder_tpl`.
      input_batch: see `decode`.
      result_callback: streams sampled tokens to the host.
      return_result_for_suffix_score: see `decode`.
    """
    decoder_params = decoder_hparams.check_supported(decoder_params)
    decoder = language_model_decoder.LanguageModelDecoder(
      lm=self.lm,
      hparams=decoder_params,
      data=self._prepare_decode_data(input_batch, decoder_params),
    )
    result = decoder.decode(
      input_batch, result_callback, return_result_for_suffix_score
    )
    metrics = decode_output.num_decoded_metrics(
      input_batch, input_batch.ids.shape[0]
    )
    return metrics, NestedMap(**{**result, **input_batch}), NestedMap()

  def process_decode_out(
    self, input_obj: Any, decode_out: NestedMap
  ) -> base_model.ProcessDecodeOut:
    """Detokenizes decoded ids; see `decode_output.process_lm_output`."""
    return decode_output.process_lm_output(input_obj, decode_out)

  def _network_tpl(self) -> LayerTpl:
    """Returns the template of the network for `model_type` and the loss."""
    lm = self.lm_tpl.clone().set(model_type=self.model_type)
    if self._records_logits():
      lm.record_logits_in_xent_output = True
    return lm

  def _apply_network(
    self, network: base_layer.BaseLayer, input_batch: NestedMap
  ) -> Any:
    """Returns what a `TransformerLm` of the same inputs returns for a batch."""
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
    paddings = self._paddings(input_batch)
    return network(input_batch.ids, paddings, labels=labels, **segments)

  def _paddings(self, input_batch: NestedMap) -> Array:
    return decode_prompts.batch_paddings(input_batch, self.fprop_dtype)

  def _prepare_decode_data(
    self, input_batch: NestedMap, decoder_params: DecoderHParams
  ) -> NestedMap:
    """Returns the prompts; see `decode_prompts.prepare_decode_data`."""
    if self.model_type == LanguageModelType.BIDIRECTIONAL:
      raise NotImplementedError('a bidirectional model cannot generate')
    decode_states.check_decoding(
      self.lm,
      prefill=decoder_params.fprop_for_prefix,
      sequential=not isinstance(decoder_params, FlatBeamSearchHParams),
    )
    data = decode_prompts.prepare_decode_data(
      input_batch, decoder_params, self.model_type, self.fprop_dtype
    )
    if getattr(decoder_params, 'cf_guidance_scale', None) is not None:
      data = self._prepare_guidance_decode_data(data)
    return data

  def _prepare_guidance_decode_data(self, decode_data: NestedMap) -> NestedMap:
    """Returns data of 2 B prompts: each with, then without its condition.

    A hook: subclasses define what a prompt without its condition is.
    """
    raise NotImplementedError(
      f'{type(self).__name__} does not support guidance; define '
      '_prepare_guidance_decode_data, or set cf_guidance_scale=None'
    )

  def _records_logits(self) -> bool:
    """Returns whether predictions include logits and log_probs; a hook.

    A loss of a subclass may read them.
    """
    has_own_loss = type(self).compute_loss is not LanguageModel.compute_loss
    return self.return_predictions or has_own_loss


def _require(batch: NestedMap, name: str, model: str) -> Array:
  if name not in batch:
    raise ValueError(
      f'the batch of {model} needs {name!r}, got {sorted(batch)}'
    )
  return batch[name]
