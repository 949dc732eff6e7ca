# SPDX-License-Identifier: Apache-2.0
"""The transformer language model."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle
from praxis.layers import (
  attentions,
  decode_states,
  embedding_softmax,
  normalizations,
  transformers,
)
from praxis.layers.attentions import segments
from praxis.layers.embedding_softmax import fused
from praxis.layers.transformer_models import (
  input_embedder,
  model_losses,
  model_sharding,
  multi_token_prediction,
  ngrammer_state,
  stack_configs,
)
from praxis.nested_map import NestedMap

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class LanguageModelType(enum.StrEnum):
  """The tokens of its segment that a token attends to."""

  # Itself and earlier tokens.
  CAUSAL = 'causal'
  # Earlier tokens, and for tokens of the prefix the whole prefix.
  PREFIX = 'prefix'
  # All tokens.
  BIDIRECTIONAL = 'bidirectional'


class TransformerLm(decode_states.DecodeStateContainer):
  """Token embedding, a stack of transformer layers, and a softmax."""

  # Added to token embeddings; None if attention encodes positions.
  position_emb_tpl: LayerTpl | None = template_field(
    embedding_softmax.PositionalEmbedding
  )
  model_dims: int = 0
  # A plain, repeated or pipelined stack.
  stacked_transformer_tpl: LayerTpl = template_field(
    transformers.StackedTransformer
  )
  # Computes logits and losses; without separate_embedding_tpl it embeds tokens
  # too. An unset xent_implementation becomes 'auto' unless logits are needed.
  softmax_tpl: LayerTpl = template_field(
    embedding_softmax.SharedEmbeddingSoftmax
  )
  vocab_size: int = 0
  # Whether rows hold several segments.
  packed_input: bool = False
  model_type: LanguageModelType = LanguageModelType.CAUSAL
  # Augments the token embeddings with n-grams.
  ngrammer_tpl: LayerTpl | None = template_field(None)
  # N-grammers after the attention of the layers, one or None per layer.
  post_attention_ngrammer_tpls: Sequence[LayerTpl | None] | None = (
    template_field(None)
  )
  # Embeds tokens instead of the softmax.
  separate_embedding_tpl: LayerTpl | None = template_field(None)
  # Inputs of each layer of the stack, in addition to its activations; a
  # LayerInputs.
  layer_inputs_tpl: LayerTpl | None = template_field(None)
  # Norm of the output of the stack.
  final_ln_tpl: LayerTpl | None = template_field(normalizations.LayerNorm)
  # Computes products with the weights of the stack in fp8: 'delayed' scales a
  # tensor by its maxima in previous steps, 'current' by its own; None does not.
  # Embeddings, softmax and the products of attention keep fprop_dtype.
  fp8_scaling: str | None = None
  # Whether to return activations instead of logits and losses.
  skip_compute_loss: bool = False
  # Whether to leave the auxiliary losses out of total_loss.
  skip_aux_loss: bool = False
  # Whether the output has the inputs of the softmax.
  record_activations_in_xent_output: bool = False
  # Whether the loss is computed from the logits in the output. If not, the loss
  # may be fused, and the logits are computed apart; XLA removes them where
  # nothing reads them.
  record_logits_in_xent_output: bool = False
  # Weight in total_loss of the mean negative entropy of the predictions; above
  # 0 it encourages high entropy.
  entropy_loss_weight: float | None = None
  # Predicts the tokens after the next one too; a `MultiTokenPrediction`.
  mtp_tpl: LayerTpl | None = template_field(None)

  @classmethod
  def set_sharding_params_v1(cls, lm_p: Any, **options: Any) -> Any:
    """Shards a Config, and returns it; see `model_sharding.shard_model`."""
    return model_sharding.shard_model(
      lm_p, _sharded_templates(lm_p), model_sharding.v1_mappings, **options
    )

  @classmethod
  def set_sharding_params_with_expert_parallelism(
    cls, lm_p: Any, *, data_expert_axis: str, **options: Any
  ) -> Any:
    """As `set_sharding_params_v1`, with an axis for expert parallelism."""
    return cls.set_sharding_params_v1(
      lm_p, data_expert_axis=data_expert_axis, **options
    )

  @classmethod
  def set_custom_sharding_params(cls, lm_p: Any, **options: Any) -> Any:
    """Shards a Config by explicit `model_sharding.Mappings`."""
    return model_sharding.shard_model(
      lm_p, _sharded_templates(lm_p), model_sharding.Mappings, **options
    )

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
    stack = self._configured_stack()
    self.create_child('transformer', stack)
    if self.layer_inputs_tpl is not None:
      layer_inputs = self._configured_inputs(self.layer_inputs_tpl, stack)
      self.create_child('layer_inputs', layer_inputs)
    if self.final_ln_tpl is not None:
      final_ln = self.final_ln_tpl.clone().set(dim=self.model_dims)
      self.create_child('final_ln', final_ln)
    if self.softmax_tpl is not None:
      self.create_child('softmax', self._configured_softmax())
    if self.mtp_tpl is not None:
      self.create_child('mtp', self._configured_mtp(self.mtp_tpl, stack))

  def _configured_stack(self) -> LayerTpl:
    stack_tpl = self.stacked_transformer_tpl
    if self.fp8_scaling is not None:
      stack_tpl = stack_tpl.clone()
      stack_configs.set_fp8_einsums(stack_tpl, self.fp8_scaling)
    return stack_configs.for_model(
      stack_tpl,
      self.model_dims,
      self.post_attention_ngrammer_tpls,
      packed_input=self.packed_input,
      # The model always passes a segment_mask that masks padding too.
      fold_padding_with_segment_mask=True,
      mask_self_attention=self.model_type == LanguageModelType.CAUSAL,
    )

  def _configured_inputs(
    self, layer_inputs: LayerTpl, stack: LayerTpl
  ) -> LayerTpl:
    """Returns a LayerInputs of the layers of the stack.

    Raises:
      ValueError: the stack is not a StackedTransformer.
    """
    if not stack_configs.has_field(stack, 'num_layers'):
      raise ValueError(
        'stacked_transformer_tpl must be a StackedTransformer with'
        f' layer_inputs_tpl, got {stack.cls.__name__}, whose layers run in a'
        ' loop; set USE_REPEATED_LAYER=False in experiments'
      )
    return layer_inputs.clone().set(
      vocab_size=self.vocab_size,
      model_dims=self.model_dims,
      num_layers=stack.num_layers,
    )

  def _configured_softmax(self) -> LayerTpl:
    """Returns the softmax's Config, fused with the loss where possible.

    Raises:
      ValueError: the model needs logits that the softmax does not materialize.
    """
    softmax = self.softmax_tpl.clone()
    softmax.set(input_dims=self.model_dims, num_classes=self.vocab_size)
    skips_z_loss = (
      self.skip_aux_loss and stack_configs.has_field(softmax, 'z_loss_weight')
    ) and bool(softmax.z_loss_weight)
    if stack_configs.has_field(softmax, 'xent_implementation'):
      needs_logits = (
        self.record_logits_in_xent_output
        or self.entropy_loss_weight
        or softmax.bi_tempered_loss_tpl is not None
        or skips_z_loss
      )
      if not softmax.has('xent_implementation') and not needs_logits:
        softmax.xent_implementation = 'auto'
    is_fused = fused.may_be_on(softmax)
    if is_fused and skips_z_loss:
      raise ValueError(
        'skip_aux_loss leaves out the z-loss, whose gradient the fused cross '
        'entropy includes; set softmax_tpl.z_loss_weight=0'
      )
    has_no_logits = is_fused or getattr(softmax, 'chunk_size', None)
    if self.entropy_loss_weight and has_no_logits:
      raise ValueError(
        'entropy_loss_weight needs the logits of all tokens, which the softmax '
        "does not materialize; set its xent_implementation='xla' and "
        'chunk_size=None'
      )
    return softmax

  def _configured_mtp(self, mtp: LayerTpl, stack: LayerTpl) -> LayerTpl:
    """Returns a MultiTokenPrediction with the last layer of the stack.

    Raises:
      ValueError: they would see the tokens that they predict, their z-loss
        would have another weight than their loss, or layers have inputs.
    """
    if self.model_type != LanguageModelType.CAUSAL:
      raise ValueError(
        f'model_type must be causal with mtp_tpl, got {self.model_type}; set '
        'mtp_tpl=None'
      )
    if self.layer_inputs_tpl is not None:
      raise ValueError(
        'layer_inputs_tpl must be None with mtp_tpl, whose layers have no'
        f' inputs of their own, got {self.layer_inputs_tpl.cls.__name__}; set'
        ' mtp_tpl=None'
      )
    if getattr(self.softmax_tpl, 'z_loss_weight', 0):
      raise ValueError(
        'z_loss_weight of softmax_tpl must be 0 with mtp_tpl, got '
        f'{self.softmax_tpl.z_loss_weight}; leave it out'
      )
    return mtp.clone().set(
      module_tpl=mtp.module_tpl.clone().set(
        model_dims=self.model_dims,
        stacked_transformer_tpl=stack_configs.last_layer(stack),
      )
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
    """Returns the losses of `labels`, or without them the probabilities.

    Args:
      inputs: token ids.
      paddings: 1 for padding; without segment_ids at the end of rows, except
        in decoding.
      labels: class_ids [B, T] or class_probabilities [B, T, V], and
        class_weights [B, T].
      segment_ids: segment of each token in its row, 0 for padding.
      segment_pos: position of each token in its segment.
      causal_attention_mask: 0 for tokens of the prefix of a prefix model, which
        earlier tokens attend to.
      segment_mask: additive attention mask that replaces the default one.
      start_time_step: first step of decoding.

    Returns:
      With labels the output of the softmax (logits and log_probs are None if it
      has a chunk_size, unless record_logits_in_xent_output), per_token_xent,
      per_sequence_xent, total_loss, aux_loss and aux_loss_weight, and with
      mtp_tpl mtp_loss and mtp_weight. Without labels logits, log_probs and
      probs. With skip_compute_loss the activations.
    """
    self._summarize_tokens(paddings)
    embedder = self._input_embedder()
    embedded = embedder.embed(inputs, segment_pos, paddings, self._emb_var())
    if self.ngrammer_tpl is not None:
      ngrammer_state.init_state(
        self, inputs, embedder.lookup(inputs), start_time_step
      )
    # Prompts of a decode cache may be aligned to the end of their rows.
    is_packed = segment_ids is not None or self.is_mutable_collection(
      base_layer.DECODE_CACHE
    )
    segment_ids, segment_pos = input_embedder.default_segments(
      paddings, segment_ids, segment_pos
    )
    mask: Array | segments.SegmentMask | None = segment_mask
    if mask is None:
      mask = self._segment_mask(segment_ids, causal_attention_mask, is_packed)
    self.update_decode_state(
      'time_step', jnp.asarray(start_time_step, jnp.int32)
    )
    activations = self.transformer(
      embedded,
      paddings,
      segment_mask=mask,
      segment_pos=segment_pos,
      **self._layer_inputs(inputs, embedded),
    )
    if self.final_ln_tpl is not None:
      activations = self.final_ln(activations)
    if self.skip_compute_loss:
      return activations
    if self.mtp_tpl is None or labels is None:
      return self.compute_loss(activations, labels, inputs)
    tokens = multi_token_prediction.Tokens(
      ids=inputs,
      labels=labels,
      paddings=paddings,
      segment_ids=segment_ids,
      segment_pos=segment_pos,
      segment_mask=mask,
    )
    return self._compute_loss_with_mtp(activations, tokens, embedder.lookup)

  def _compute_loss_with_mtp(
    self,
    activations: Float[Array, 'B T D'],
    tokens: multi_token_prediction.Tokens,
    lookup: Callable[[Int[Array, 'B T']], Float[Array, 'B T D']],
  ) -> NestedMap:
    """Returns the losses with those of the tokens after the next ones.

    In evaluation total_loss is that of the next tokens.
    """
    run_mtp = lambda: self.mtp(activations, tokens, lookup, self.softmax)
    # compute_loss adds up the auxiliary losses of the layers that ran.
    if self.do_eval and not self.is_initializing():
      output = self.compute_loss(activations, tokens.labels, tokens.ids)
      return NestedMap(output, **run_mtp())
    mtp_losses = run_mtp()
    output = self.compute_loss(activations, tokens.labels, tokens.ids)
    output.total_loss += self.mtp.loss_weight * mtp_losses.mtp_loss
    return NestedMap(output, **mtp_losses)

  def compute_loss(
    self,
    activations: Float[Array, 'B T D'],
    labels: NestedMap | None = None,
    input_ids: Int[Array, 'B T'] | None = None,
  ) -> NestedMap:
    """Returns the losses or probabilities of `__call__`."""
    if labels is None:
      output = model_losses.probabilities(self.softmax, activations, input_ids)
      if self.record_activations_in_xent_output:
        output.activations = activations
      return output
    output = model_losses.label_losses(
      self.softmax, activations, labels, input_ids
    )
    if self.entropy_loss_weight:
      model_losses.add_entropy_loss(
        self, output, labels.class_weights, self.entropy_loss_weight
      )
    model_losses.add_aux_losses(self, output, skip=self.skip_aux_loss)
    self._record_activations_and_logits(output, activations, input_ids)
    return output

  def extend_step(
    self,
    inputs: Int[Array, '*B'],
    segment_pos: Int[Array, '*B'] | None = None,
    atten_mask: Float[Array, '...'] | None = None,
  ) -> NestedMap:
    """Returns the logits of the tokens after one or several decoding steps.

    Args:
      inputs: token ids, [B] for one step, [B, T] for several.
      segment_pos: position of each token in its segment; None: the time step.
      atten_mask: additive mask over cached steps, replaces the default one.

    Returns:
      A map of logits, [B, V] or [B, T, V]; with
      record_activations_in_xent_output also of the inputs of the softmax.

    Raises:
      ValueError: the model is bidirectional.
    """
    if self.model_type == LanguageModelType.BIDIRECTIONAL:
      raise ValueError(
        'a bidirectional model attends to later tokens, so it has no decoding '
        'steps; set model_type to CAUSAL or PREFIX'
      )
    time_step = self.get_decode_state('time_step')
    ids = inputs[:, None] if inputs.ndim == 1 else inputs
    position = segment_pos
    if position is None:
      steps = jnp.arange(ids.shape[1], dtype=jnp.int32)
      position = jnp.broadcast_to(time_step + steps, ids.shape)
    position = position.reshape(ids.shape)
    embedded = self._input_embedder().embed_step(self, ids, position, position)
    if inputs.ndim == 1:
      embedded = embedded[:, 0]
    activations = self.transformer.extend_step(
      embedded,
      time_step=time_step,
      segment_pos=segment_pos,
      atten_mask=atten_mask,
      **self._layer_inputs(inputs, embedded),
    )
    self.update_decode_state('time_step', time_step + ids.shape[1])
    if self.final_ln_tpl is not None:
      activations = self.final_ln(activations)
    output = NestedMap(logits=self.softmax.get_logits(activations, inputs))
    if self.record_activations_in_xent_output:
      output.activations = activations
    return output

  def check_decoding(self, *, prefill: bool, sequential: bool) -> None:
    """Checks that the layers can decode; see `decode_states.check_decoding`.

    Raises:
      ValueError: a layer does not support this mode of decoding.
    """
    if self.ngrammer_tpl is not None and not sequential:
      raise ValueError(
        'ngrammer_tpl must be None in flat beam search, where adjacent steps '
        'belong to different hypotheses, got '
        f'{self.ngrammer_tpl.cls.__name__}; use BeamSearchHParams'
      )
    super().check_decoding(prefill=prefill, sequential=sequential)

  def transform_decode_state(
    self, transform_fn: base_layer.DecodeStateTransformFn
  ) -> None:
    """Replaces every cached tensor by fn(tensor, batch_dim, time_dim)."""
    ngrammer_state.transform_state(self, transform_fn)
    super().transform_decode_state(transform_fn)

  def lazy_broadcast_prefix(
    self, num_suffix_samples: int, suffix_length: int
  ) -> None:
    """Moves the caches to shared prefix caches, and starts suffix caches."""
    repeat = lambda x, batch, time: jnp.repeat(x, num_suffix_samples, batch)
    ngrammer_state.transform_state(self, repeat)
    super().lazy_broadcast_prefix(num_suffix_samples, suffix_length)

  def _visit_decode_states(
    self, visit: Callable[[base_layer.BaseLayer], None]
  ) -> None:
    visit(self.transformer)

  def _input_embedder(self) -> input_embedder.InputEmbedder:
    has_embedding = self.separate_embedding_tpl is not None
    return input_embedder.InputEmbedder(
      token_emb=self.embedding_lookup if has_embedding else self.softmax,
      ngrammer=None if self.ngrammer_tpl is None else self.ngrammer,
      position_emb=None if self.position_emb_tpl is None else self.position_emb,
    )

  def _layer_inputs(
    self, ids: Int[Array, ' B *L'], embedded: Float[Array, 'B *L D']
  ) -> dict[str, Array]:
    """Returns the argument of the stack with the inputs of each layer, if any.

    Args:
      ids: of the tokens.
      embedded: inputs of the first layer.
    """
    if self.layer_inputs_tpl is None:
      return {}
    return {'layer_inputs': self.layer_inputs(ids, embedded)}

  def _emb_var(self) -> Float[Array, 'V D'] | None:
    """Returns the embeddings of the vocabulary for the n-grammer, if dense."""
    if self.ngrammer_tpl is None:
      return None
    if self.separate_embedding_tpl is not None:
      return self.embedding_lookup.theta.emb_var
    table = self.softmax.class_table()
    if table is None or table.transposed:
      return table and table.weight
    return table.weight.T

  def _segment_mask(
    self,
    segment_ids: Array,
    causal_attention_mask: Array | None,
    is_packed: bool,
  ) -> Float[Array, 'B 1 T T'] | segments.SegmentMask:
    is_bidirectional = self.model_type == LanguageModelType.BIDIRECTIONAL
    if causal_attention_mask is None and stack_configs.may_use_kernels(
      self.stacked_transformer_tpl, segment_ids.shape[1]
    ):
      dtype = np.dtype(self.fprop_dtype)
      return segments.SegmentMask(
        segment_ids, not is_bidirectional, dtype, is_packed
      )
    if is_bidirectional:
      return attentions.segment_mask(segment_ids, dtype=self.fprop_dtype)
    return attentions.causal_segment_mask(
      segment_ids, self.fprop_dtype, causal_attention_mask
    )

  def _summarize_tokens(self, paddings: Array) -> None:
    def num_tokens() -> Array:
      return jnp.sum(1.0 - paddings.astype(jnp.float32))

    self.add_summary('num_unpadded_tokens', num_tokens)
    self.add_summary(
      'ratio_unpadded_tokens', lambda: num_tokens() / paddings.size
    )

  def _record_activations_and_logits(
    self, output: NestedMap, activations: Array, input_ids: Array | None
  ) -> None:
    if self.record_activations_in_xent_output:
      output.activations = activations
    # With chunks the output has None: the caller chose not to have logits.
    is_absent = 'logits' not in output or (
      self.record_logits_in_xent_output and output.logits is None
    )
    if is_absent:
      recorded = model_losses.probabilities(
        self.softmax, activations, input_ids
      )
      output.logits, output.log_probs = recorded.logits, recorded.log_probs


def _sharded_templates(lm_p: LayerTpl) -> model_sharding.ShardedTemplates:
  return model_sharding.ShardedTemplates(
    softmax_and_embeddings=[lm_p.softmax_tpl, lm_p.separate_embedding_tpl],
    position_embs=[lm_p.position_emb_tpl],
    ngrammers=[lm_p.ngrammer_tpl],
    stacks=[lm_p.stacked_transformer_tpl],
    mtps=[lm_p.mtp_tpl],
    layer_inputs=[lm_p.layer_inputs_tpl],
  )
