# SPDX-License-Identifier: Apache-2.0
"""A transformer language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle
from praxis.layers import (
  attentions,
  decode_states,
  embedding_softmax,
  normalizations,
  transformers,
)
from praxis.layers.transformer_models import (
  model_losses,
  model_sharding,
  ngrammer_state,
  segments,
  softmaxes,
  stack_configs,
)
from praxis.layers.transformer_models.language_model_type import (
  LanguageModelType,
)
from praxis.nested_map import NestedMap

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class TransformerLm(decode_states.DecodeStateContainer):
  """Embeds ids, runs a stack of transformer layers, and scores the next ids."""

  # Added to the embedding of tokens; None where attention knows positions.
  position_emb_tpl: LayerTpl | None = template_field(
    embedding_softmax.PositionalEmbedding
  )
  # Size of what goes from layer to layer.
  model_dims: int = 0
  # The layers: a stack, a repeated or a pipelined one.
  stacked_transformer_tpl: LayerTpl = template_field(
    transformers.StackedTransformer
  )
  # Scores tokens; without separate_embedding_tpl it embeds them too. Where its
  # xent_implementation is not set, 'auto' is taken unless logits are needed.
  softmax_tpl: LayerTpl = template_field(
    embedding_softmax.SharedEmbeddingSoftmax
  )
  # How many tokens there are.
  vocab_size: int = 0
  # Whether several texts share a row, told apart by segment_ids.
  packed_input: bool = False
  # What a token attends to.
  model_type: LanguageModelType = LanguageModelType.CAUSAL
  # Changes the embedding by the neighbours' ids.
  ngrammer_tpl: LayerTpl | None = template_field(None)
  # N-grammers of the layers, after their attention.
  post_attention_ngrammer_tpls: Sequence[LayerTpl | None] | None = (
    template_field(None)
  )
  # Embeds tokens instead of the softmax.
  separate_embedding_tpl: LayerTpl | None = template_field(None)
  # Normalises what the last layer puts out.
  final_ln_tpl: LayerTpl | None = template_field(normalizations.LayerNorm)
  # Whether the result is the activations, without scores and losses.
  skip_compute_loss: bool = False
  # Whether total_loss leaves out the auxiliary losses.
  skip_aux_loss: bool = False
  # Whether the result has the activations before the softmax, and the logits;
  # without the latter the loss need not make them.
  record_activations_in_xent_output: bool = False
  record_logits_in_xent_output: bool = False
  # Weight in total_loss of the mean negative entropy of the predictions: more
  # of it, and they spread over more tokens.
  entropy_loss_weight: float | None = None

  @classmethod
  def set_sharding_params_v1(cls, lm_p: Any, **options: Any) -> Any:
    """Splits a Config over data and model; see `sharding.set_v1`."""
    return model_sharding.set_v1(lm_p, **options)

  @classmethod
  def set_sharding_params_with_expert_parallelism(
    cls, lm_p: Any, *, data_expert_axis: str, **options: Any
  ) -> Any:
    """As `set_sharding_params_v1`, with an axis that splits experts too."""
    return model_sharding.set_v1(
      lm_p, data_expert_axis=data_expert_axis, **options
    )

  @classmethod
  def set_custom_sharding_params(cls, lm_p: Any, **options: Any) -> Any:
    """Splits a Config as its arguments say; see `sharding.set_custom`."""
    return model_sharding.set_custom(lm_p, **options)

  def setup(self) -> None:
    self._check_positive('model_dims')
    if self.position_emb_tpl is not None:
      position_emb = self.position_emb_tpl.clone()
      self.create_child(
        'position_emb', position_emb.set(embedding_dims=self.model_dims)
      )
    if self.ngrammer_tpl is not None:
      self.create_child('ngrammer', self.ngrammer_tpl.clone())
    if self.separate_embedding_tpl is not None:
      embedding = self.separate_embedding_tpl.clone()
      embedding.set(input_dims=self.model_dims, num_classes=self.vocab_size)
      self.create_child('embedding_lookup', embedding)
    self.create_child('transformer', self._transformer_tpl())
    if self.final_ln_tpl is not None:
      final_ln = self.final_ln_tpl.clone().set(dim=self.model_dims)
      self.create_child('final_ln', final_ln)
    if self.softmax_tpl is not None:
      self.create_child('softmax', softmaxes.of_language_model(self))

  def _transformer_tpl(self) -> LayerTpl:
    """Returns the stack's Config with what the model decides for it."""
    return stack_configs.for_model(
      self.stacked_transformer_tpl,
      self.model_dims,
      self.post_attention_ngrammer_tpls,
      packed_input=self.packed_input,
      # segment_mask, which the model always passes, hides padding as well.
      fold_padding_with_segment_mask=True,
      mask_self_attention=self.model_type == LanguageModelType.CAUSAL,
    )

  def __call__(
    self,
    inputs: Int[Array, 'B T'],
    paddings: Num[Array, 'B T'],
    labels: NestedMap | None = None,
    segment_ids: Int[Array, 'B T'] | None = None,
    segment_pos: Int[Array, 'B T'] | None = None,
    causal_attention_mask: Num[Array, 'B T'] | None = None,
    segment_mask: Float[Array, 'B 1 T T'] | None = None,
    start_time_step: int = 0,
  ) -> Any:
    """Scores `labels`, or without them the next token.

    Args:
      inputs: ids of the tokens.
      paddings: 1 where there is no token.
      labels: class_ids, or class_probabilities, and class_weights.
      segment_ids: which text of its row a token belongs to, 0 for none.
      segment_pos: position of a token in its text.
      causal_attention_mask: 0 for tokens that earlier ones see as well, for a
        prefix model.
      segment_mask: an additive mask that replaces the one made of all this.
      start_time_step: the step that decoding starts at.

    Returns:
      With labels what the softmax returns, but logits and log_probs only if
      record_logits_in_xent_output, and per_token_xent,
      per_sequence_xent, total_loss, aux_loss and aux_loss_weight; without
      labels logits, log_probs and probs; the activations if skip_compute_loss.
    """
    self._summarize_tokens(paddings)
    embedded = self._embed(inputs, segment_pos, paddings)
    if self.ngrammer_tpl is not None:
      ngrammer_state.begin(self, inputs, self._look_up(inputs), start_time_step)
    segment_ids, segment_pos = segments.or_one_per_row(
      paddings, segment_ids, segment_pos
    )
    if segment_mask is None:
      segment_mask = self._mask(segment_ids, causal_attention_mask)
    self.update_decode_state(
      'time_step', jnp.asarray(start_time_step, jnp.int32)
    )
    activations = self.transformer(
      embedded, paddings, segment_mask=segment_mask, segment_pos=segment_pos
    )
    if self.final_ln_tpl is not None:
      activations = self.final_ln(activations)
    if self.skip_compute_loss:
      return activations
    return self.compute_loss(activations, labels, inputs)

  def compute_loss(
    self,
    activations: Float[Array, 'B T D'],
    labels: NestedMap | None = None,
    input_ids: Int[Array, 'B T'] | None = None,
  ) -> NestedMap:
    """Returns the scores, and with labels the losses; see `__call__`."""
    if labels is None:
      return model_losses.probabilities(self.softmax, activations, input_ids)
    output = model_losses.score_labels(
      self.softmax, activations, labels, input_ids
    )
    if self.entropy_loss_weight:
      model_losses.add_entropy_loss(
        self, output, labels.class_weights, self.entropy_loss_weight
      )
    model_losses.add_aux_losses(self, output, skip=self.skip_aux_loss)
    self._record(output, activations, input_ids)
    return output

  def extend_step(
    self,
    inputs: Int[Array, '*B'],
    segment_pos: Int[Array, '*B'] | None = None,
    atten_mask: Float[Array, '...'] | None = None,
  ) -> NestedMap:
    """Scores the tokens after `inputs`, one step or several at once.

    The decode state holds what came before. `segment_pos` is the position of
    each input in its text, by default the time step.

    Returns:
      A map of logits, [B, V] or [B, T, V].

    Raises:
      ValueError: the model is bidirectional.
    """
    if self.model_type == LanguageModelType.BIDIRECTIONAL:
      raise ValueError(
        'a bidirectional model sees later tokens, so it has no steps; set '
        'model_type to CAUSAL or PREFIX'
      )
    time_step = self.get_decode_state('time_step')
    ids = inputs[:, None] if inputs.ndim == 1 else inputs
    position = segment_pos
    if position is None:
      steps = jnp.arange(ids.shape[1], dtype=jnp.int32)
      position = jnp.broadcast_to(time_step + steps, ids.shape)
    embedded = self._embed_step(ids, position.reshape(ids.shape))
    if inputs.ndim == 1:
      embedded = embedded[:, 0]
    activations = self.transformer.extend_step(
      embedded,
      time_step=time_step,
      segment_pos=segment_pos,
      atten_mask=atten_mask,
    )
    self.update_decode_state('time_step', time_step + ids.shape[1])
    if self.final_ln_tpl is not None:
      activations = self.final_ln(activations)
    return NestedMap(logits=self.softmax.get_logits(activations, inputs))

  def check_decoding(self, *, prefill: bool, sequential: bool) -> None:
    """Raises ValueError if a layer cannot decode so; see `decode_states`."""
    if self.ngrammer_tpl is not None and not sequential:
      raise ValueError(
        'ngrammer_tpl must be None in a flat beam search, where the step '
        f'before is of another text, got {self.ngrammer_tpl.cls.__name__}; use '
        'BeamSearchHParams'
      )
    super().check_decoding(prefill=prefill, sequential=sequential)

  def transform_decode_state(
    self, transform_fn: decode_states.TransformFn
  ) -> None:
    """Replaces every cached tensor by fn(tensor, batch_dim, time_dim)."""
    ngrammer_state.transform(self, transform_fn)
    super().transform_decode_state(transform_fn)

  def lazy_broadcast_prefix(
    self, num_suffix_samples: int, suffix_length: int
  ) -> None:
    """Freezes caches as prefixes of so many samples; see attentions."""
    repeat = lambda x, batch, time: jnp.repeat(x, num_suffix_samples, batch)
    ngrammer_state.transform(self, repeat)
    super().lazy_broadcast_prefix(num_suffix_samples, suffix_length)

  def _visit_decode_states(
    self, visit: Callable[[base_layer.BaseLayer], None]
  ) -> None:
    visit(self.transformer)

  def _embed(
    self,
    ids: Int[Array, 'B T'],
    position: Int[Array, 'B T'] | None,
    paddings: Num[Array, 'B T'],
  ) -> Float[Array, 'B T D']:
    embedded = self._look_up(ids)
    if self.ngrammer_tpl is not None:
      embedded = self.ngrammer(
        input_ids=ids,
        input_embs=embedded,
        paddings=paddings,
        segment_pos=position,
        emb_var=self._table(),
      )
    if self.position_emb_tpl is not None:
      length = ids.shape[1]
      embedded += self.position_emb(seq_length=length, position=position)
    return embedded

  def _embed_step(
    self, ids: Int[Array, 'B L'], position: Int[Array, 'B L']
  ) -> Float[Array, 'B L D']:
    embedded = self._look_up(ids)
    if self.ngrammer_tpl is not None:
      embedded = ngrammer_state.step(
        self, self.ngrammer, ids, embedded, position
      )
    if self.position_emb_tpl is not None:
      embedded += self.position_emb(position=position)
    return embedded

  def _look_up(self, ids: Int[Array, 'B T']) -> Float[Array, 'B T D']:
    if self.separate_embedding_tpl is not None:
      return self.embedding_lookup.emb_lookup(ids)
    return self.softmax.emb_lookup(ids)

  def _table(self) -> Float[Array, 'V D'] | None:
    """Returns the vectors of all tokens, if they are one matrix."""
    if self.separate_embedding_tpl is not None:
      return self.embedding_lookup.theta.emb_var
    table = self.softmax.class_table()
    if table is None or table.transposed:
      return table and table.weight
    return table.weight.T

  def _mask(
    self, segment_ids: Array, causal_attention_mask: Array | None
  ) -> Float[Array, 'B 1 T T']:
    if self.model_type == LanguageModelType.BIDIRECTIONAL:
      return attentions.segment_mask(segment_ids, dtype=self.fprop_dtype)
    return attentions.causal_segment_mask(
      segment_ids, self.fprop_dtype, causal_attention_mask
    )

  def _summarize_tokens(self, paddings: Array) -> None:
    def count() -> Array:
      return jnp.sum(1.0 - paddings.astype(jnp.float32))

    self.add_summary('num_unpadded_tokens', count)
    self.add_summary('ratio_unpadded_tokens', lambda: count() / paddings.size)

  def _record(
    self, output: NestedMap, activations: Array, input_ids: Array | None
  ) -> None:
    if self.record_activations_in_xent_output:
      output.activations = activations
    if not self.record_logits_in_xent_output:
      # The same keys whichever implementation computed the loss.
      output.pop('logits', None)
      output.pop('log_probs', None)
    elif 'logits' not in output:
      output.logits = self.softmax.get_logits(activations, input_ids)
