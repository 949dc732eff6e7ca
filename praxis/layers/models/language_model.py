# SPDX-License-Identifier: Apache-2.0
"""A decoder-only language model with its losses, metrics and generation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer, base_model, pax_fiddle
from praxis.decoding import loop
from praxis.decoding.hparams import DecoderHParams, GreedyDecoderHParams
from praxis.layers import embedding_softmax, transformer_models
from praxis.layers.models import decode_output, xent_metrics
from praxis.layers.transformer_models import LanguageModelType
from praxis.nested_map import NestedMap

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class LanguageModel(base_model.BaseModel):
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
    if self.return_predictions:
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

  def decode(self, input_batch: NestedMap) -> base_model.DecodeOut:
    """Continues the texts of a batch, as `decoder_tpl` says.

    Call it where DECODE_CACHE is mutable. A text is the batch's first
    prefix_lengths ids, if it has them, else those that are no padding.

    Returns:
      ({'num_decoded'}, the batch with what `loop.sample_decode` returns, {}).
    """
    return self.decode_with_params(self.decoder_tpl, input_batch)

  def decode_with_params(
    self, decoder_params: DecoderHParams, input_batch: NestedMap
  ) -> base_model.DecodeOut:
    """As `decode`, by parameters other than the model's."""
    if self.model_type == LanguageModelType.BIDIRECTIONAL:
      raise NotImplementedError('a bidirectional model cannot generate')
    prompts = self._prompts(input_batch)
    greedy = type(decoder_params) is GreedyDecoderHParams
    key = jax.random.key(0) if greedy else self.next_prng_key()
    result = loop.sample_decode(self.lm, prompts, decoder_params, key)
    result.original_lengths = _lengths(self._paddings(input_batch))
    sample_weights = input_batch.get('eval_sample_weights')
    num_decoded = (
      jnp.asarray(prompts.ids.shape[0], jnp.float32)
      if sample_weights is None
      else jnp.sum(sample_weights)
    )
    metrics = NestedMap(num_decoded=(num_decoded, jnp.asarray(1.0)))
    return metrics, NestedMap(**{**input_batch, **result}), NestedMap()

  def process_decode_out(
    self, input_obj: Any, decode_out: NestedMap
  ) -> base_model.ProcessDecodeOut:
    """Returns the texts that `input_obj` makes of decoded ids, by prompt."""
    return decode_output.process(input_obj, decode_out)

  def _paddings(self, batch: NestedMap) -> Float[Array, 'B T']:
    if 'paddings' in batch:
      return batch.paddings
    return jnp.zeros(batch.ids.shape, self.fprop_dtype)

  def _prompts(self, batch: NestedMap) -> loop.Prompts:
    indicator = None
    if self.model_type == LanguageModelType.PREFIX:
      indicator = _require(batch, 'inputs_indicator', 'a prefix model')
    if 'prefix_lengths' in batch:
      lengths = batch.prefix_lengths
    elif indicator is not None:
      lengths = jnp.sum(indicator, axis=1)
    else:
      lengths = _lengths(self._paddings(batch))
    # An empty text is read as one token, id 0.
    lengths = jnp.maximum(lengths.astype(jnp.int32), 1)
    is_prompt = jnp.arange(batch.ids.shape[1])[None] < lengths[:, None]
    return loop.Prompts(
      ids=jnp.where(is_prompt, batch.ids, 0),
      lengths=lengths,
      inputs_indicator=indicator,
    )


def _lengths(paddings: Float[Array, 'B T']) -> Int[Array, 'B']:
  return jnp.sum(1 - paddings.astype(jnp.int32), axis=1)


def _require(batch: NestedMap, name: str, why: str) -> Array:
  if name not in batch:
    raise ValueError(f'the batch of {why} needs {name!r}, got {sorted(batch)}')
  return batch[name]
