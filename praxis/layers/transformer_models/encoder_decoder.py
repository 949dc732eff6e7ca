# SPDX-License-Identifier: Apache-2.0
"""The transformer encoder-decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from absl import logging
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle
from praxis.layers import (
  attentions,
  decode_states,
  embedding_softmax,
  normalizations,
)
from praxis.layers.transformer_models import (
  input_embedder,
  model_losses,
  model_sharding,
  ngrammer_state,
  stack_configs,
)
from praxis.nested_map import NestedMap

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class TransformerEncoderDecoder(decode_states.DecodeStateContainer):
  """A bidirectional encoder of S inputs and a causal decoder of T targets.

  The decoder attends to the encoder's outputs of the same segment.

  References: Attention Is All You Need, https://arxiv.org/abs/1706.03762
  """

  # Position embedding of encoder and decoder; if None, each has its own.
  position_emb_tpl: LayerTpl | None = template_field(
    embedding_softmax.PositionalEmbedding
  )
  encoder_position_emb_tpl: LayerTpl | None = template_field(None)
  # A plain, repeated or pipelined stack.
  encoder_stacked_transformer_tpl: LayerTpl | None = template_field(None)
  # Augments the token embeddings with n-grams.
  encoder_ngrammer_tpl: LayerTpl | None = template_field(None)
  # Ignored, with a warning, as upstream does; set ngrammer_tpls of the stack.
  encoder_post_attention_ngrammer_tpls: Sequence[LayerTpl | None] | None = (
    template_field(None)
  )
  # Embeds the inputs; None: the embedding of the targets does.
  encoder_embedding_tpl: LayerTpl | None = template_field(None)
  # The same for the decoder. Its stack has use_cross_attention=True; without
  # decoder_embedding_tpl the softmax embeds the targets.
  decoder_position_emb_tpl: LayerTpl | None = template_field(None)
  decoder_stacked_transformer_tpl: LayerTpl | None = template_field(None)
  decoder_ngrammer_tpl: LayerTpl | None = template_field(None)
  decoder_post_attention_ngrammer_tpls: Sequence[LayerTpl | None] | None = (
    template_field(None)
  )
  decoder_embedding_tpl: LayerTpl | None = template_field(None)
  model_dims: int = 0
  # Computes logits and losses of the targets.
  softmax_tpl: LayerTpl = template_field(
    embedding_softmax.SharedEmbeddingSoftmax
  )
  # Whether rows hold several examples, separated by segment ids.
  packed_input: bool = False
  # Norms of the outputs of both stacks.
  encoder_ln_tpl: LayerTpl | None = template_field(normalizations.LayerNorm)
  decoder_ln_tpl: LayerTpl | None = template_field(normalizations.LayerNorm)

  @classmethod
  def set_sharding_params_v1(cls, model_p: Any, **options: Any) -> Any:
    """Shards a Config, and returns it; see `model_sharding.shard_model`."""
    return model_sharding.shard_model(
      model_p,
      _sharded_templates(model_p),
      model_sharding.v1_mappings,
      **options,
    )

  @classmethod
  def set_sharding_params_with_expert_parallelism(
    cls, model_p: Any, *, data_expert_axis: str, **options: Any
  ) -> Any:
    """As `set_sharding_params_v1`, with an axis for expert parallelism."""
    return cls.set_sharding_params_v1(
      model_p, data_expert_axis=data_expert_axis, **options
    )

  def setup(self) -> None:
    self._check_positive('model_dims')
    self._check_position_templates()
    self._create_embeddings()
    if self.encoder_ngrammer_tpl is not None:
      self.create_child('encoder_ngrammer', self.encoder_ngrammer_tpl)
    if self.decoder_ngrammer_tpl is not None:
      self.create_child('decoder_ngrammer', self.decoder_ngrammer_tpl)
    self.create_child('encoder', self._configured_encoder())
    self.create_child('decoder', self._configured_decoder())
    if self.encoder_ln_tpl is not None:
      norm = self.encoder_ln_tpl.clone().set(dim=self.model_dims)
      self.create_child('encoder_ln', norm)
    if self.decoder_ln_tpl is not None:
      norm = self.decoder_ln_tpl.clone().set(dim=self.model_dims)
      self.create_child('decoder_ln', norm)

  def encode(
    self,
    inputs: Int[Array, 'B S'],
    input_paddings: Num[Array, 'B S'],
    input_segment_ids: Int[Array, 'B S'] | None = None,
    input_segment_pos: Int[Array, 'B S'] | None = None,
    input_segment_mask: Float[Array, 'B 1 S S'] | None = None,
  ) -> Float[Array, 'B S D']:
    """Returns the outputs of the encoder.

    Args:
      inputs: input ids of the encoder.
      input_paddings: 1 for padding.
      input_segment_ids: example of each input in its row, 0 for padding.
      input_segment_pos: position of each input in its example.
      input_segment_mask: additive mask, replaces that of input_segment_ids.
    """
    ids, pos = input_embedder.default_segments(
      input_paddings, input_segment_ids, input_segment_pos
    )
    embedded = self._encoder_embedder().embed(inputs, pos, input_paddings)
    if input_segment_mask is None:
      input_segment_mask = attentions.segment_mask(ids, dtype=embedded.dtype)
    outputs = self.encoder(
      embedded,
      input_paddings,
      segment_mask=input_segment_mask,
      segment_pos=pos,
    )
    return outputs if self.encoder_ln_tpl is None else self.encoder_ln(outputs)

  def __call__(
    self,
    inputs: Int[Array, 'B S'],
    input_paddings: Num[Array, 'B S'],
    targets: Int[Array, 'B T'],
    target_paddings: Num[Array, 'B T'],
    labels: NestedMap | None = None,
    input_segment_ids: Int[Array, 'B S'] | None = None,
    input_segment_pos: Int[Array, 'B S'] | None = None,
    input_segment_mask: Float[Array, 'B 1 S S'] | None = None,
    target_segment_ids: Int[Array, 'B T'] | None = None,
    target_segment_pos: Int[Array, 'B T'] | None = None,
    target_segment_mask: Float[Array, 'B 1 T T'] | None = None,
    cross_segment_mask: Float[Array, 'B 1 T S'] | None = None,
    start_time_step: int = 0,
  ) -> NestedMap:
    """Returns the losses of `labels`, or without them the probabilities.

    Args:
      inputs: input ids of the encoder.
      input_paddings: 1 for padding.
      targets: input ids of the decoder.
      target_paddings: 1 for padding.
      labels: class_ids [B, T] or class_probabilities [B, T, V], and
        class_weights [B, T].
      input_segment_ids: example of each input in its row, 0 for padding.
      input_segment_pos: position of each input in its example.
      input_segment_mask: additive mask, replaces that of input_segment_ids.
      target_segment_ids: example of each target, as of the inputs.
      target_segment_pos: position of each target in its example.
      target_segment_mask: additive mask, replaces the causal segment mask.
      cross_segment_mask: additive mask from targets to inputs, likewise.
      start_time_step: first step of decoding.

    Returns:
      With labels the output of the softmax, per_token_xent, per_sequence_xent,
      total_loss, aux_loss and aux_loss_weight. Without labels logits, log_probs
      and probs.
    """
    encoded = self.encode(
      inputs,
      input_paddings,
      input_segment_ids,
      input_segment_pos,
      input_segment_mask,
    )
    return self.fprop_with_encoder_output(
      encoder_output=encoded,
      input_paddings=input_paddings,
      targets=targets,
      target_paddings=target_paddings,
      labels=labels,
      input_segment_ids=input_segment_ids,
      input_segment_pos=input_segment_pos,
      target_segment_ids=target_segment_ids,
      target_segment_pos=target_segment_pos,
      target_segment_mask=target_segment_mask,
      cross_segment_mask=cross_segment_mask,
      start_time_step=start_time_step,
    )

  def fprop_with_encoder_output(
    self,
    encoder_output: Float[Array, 'B S D'],
    input_paddings: Num[Array, 'B S'],
    targets: Int[Array, 'B T'],
    target_paddings: Num[Array, 'B T'],
    labels: NestedMap | None = None,
    input_segment_ids: Int[Array, 'B S'] | None = None,
    input_segment_pos: Int[Array, 'B S'] | None = None,
    target_segment_ids: Int[Array, 'B T'] | None = None,
    target_segment_pos: Int[Array, 'B T'] | None = None,
    target_segment_mask: Float[Array, 'B 1 T T'] | None = None,
    cross_segment_mask: Float[Array, 'B 1 T S'] | None = None,
    start_time_step: int = 0,
  ) -> NestedMap:
    """Returns the output of `__call__`, given that of `encode`."""
    input_ids, _ = input_embedder.default_segments(
      input_paddings, input_segment_ids, input_segment_pos
    )
    ids, pos = input_embedder.default_segments(
      target_paddings, target_segment_ids, target_segment_pos
    )
    embedded = self._decoder_embedder().embed(targets, pos, target_paddings)
    if cross_segment_mask is None:
      cross_segment_mask = attentions.segment_mask(
        ids, input_ids, embedded.dtype
      )
    if target_segment_mask is None:
      target_segment_mask = attentions.causal_segment_mask(ids, embedded.dtype)
    self._init_decode_state(targets, input_paddings, start_time_step)
    outputs = self.decoder(
      embedded,
      target_paddings,
      target_segment_mask,
      cross_inputs=encoder_output,
      cross_paddings=input_paddings,
      cross_segment_mask=cross_segment_mask,
      segment_pos=pos,
    )
    return self.compute_loss(self._normalize_decoded(outputs), labels)

  def compute_loss(
    self, activations: Float[Array, '*B D'], labels: NestedMap | None = None
  ) -> NestedMap:
    """Returns the losses or probabilities of `__call__`."""
    if labels is None:
      return model_losses.probabilities(self.softmax, activations)
    output = model_losses.label_losses(self.softmax, activations, labels)
    model_losses.add_aux_losses(self, output)
    return output

  def extend_step(self, targets: Int[Array, ' B *P']) -> NestedMap:
    """Returns the probabilities of the tokens after one decoding step.

    Several samples may continue one example: B is then a multiple of the batch
    size of the inputs, and the samples of an example are adjacent.

    Args:
      targets: ids of the step, [B] or [B, P]; of P ids the last is the step's,
        earlier ones are seen by the n-grammer only.

    Returns:
      A map of logits, log_probs and probs, [B, V].
    """
    ids = targets if targets.ndim == 2 else targets[:, None]
    time_step = self.get_decode_state('time_step')
    paddings = self.get_decode_state('input_paddings')
    pos = jnp.full((ids.shape[0], 1), time_step, jnp.int32)
    embedded = self._decoder_embedder().embed_step(self, ids, pos)
    num_samples = ids.shape[0] // paddings.shape[0]
    outputs = self.decoder.extend_step(
      embedded[:, -1],
      time_step=time_step,
      cross_paddings=jnp.repeat(paddings, num_samples, axis=0),
    )
    self.update_decode_state('time_step', time_step + 1)
    return self.compute_loss(self._normalize_decoded(outputs))

  def transform_decode_state(
    self, transform_fn: base_layer.DecodeStateTransformFn
  ) -> None:
    """Replaces every cached tensor by fn(tensor, batch_dim, time_dim)."""
    ngrammer_state.transform_state(self, transform_fn)
    super().transform_decode_state(transform_fn)

  def _visit_decode_states(
    self, visit: Callable[[base_layer.BaseLayer], None]
  ) -> None:
    visit(self.decoder)

  # Children and their templates.

  def _check_position_templates(self) -> None:
    if self.position_emb_tpl is None:
      return
    for name, template in (
      ('encoder_position_emb_tpl', self.encoder_position_emb_tpl),
      ('decoder_position_emb_tpl', self.decoder_position_emb_tpl),
    ):
      if template is not None:
        raise ValueError(
          f'{name} must be None with position_emb_tpl, got a template; set '
          'position_emb_tpl=None for separate position embeddings'
        )

  def _create_embeddings(self) -> None:
    """Creates the embeddings and the softmax with the model's dimension."""
    for name, template in (
      ('position_emb', self.position_emb_tpl),
      ('encoder_position_emb', self.encoder_position_emb_tpl),
      ('decoder_position_emb', self.decoder_position_emb_tpl),
    ):
      if template is not None:
        stack_configs.check_dims(
          f'embedding_dims of {name}', template.embedding_dims, self.model_dims
        )
        template = template.clone().set(embedding_dims=self.model_dims)
        self.create_child(name, template)
    for name, template in (
      ('encoder_embedding_lookup', self.encoder_embedding_tpl),
      ('decoder_embedding_lookup', self.decoder_embedding_tpl),
      ('softmax', self.softmax_tpl),
    ):
      if template is not None:
        stack_configs.check_dims(
          f'input_dims of {name}', template.input_dims, self.model_dims
        )
        template = template.clone().set(input_dims=self.model_dims)
        self.create_child(name, template)

  def _configured_encoder(self) -> LayerTpl:
    stack = _configured_stack(
      'encoder',
      self.encoder_stacked_transformer_tpl,
      self.model_dims,
      packed_input=self.packed_input,
    )
    _warn_of_ignored_ngrammers(
      'encoder', stack, self.encoder_post_attention_ngrammer_tpls
    )
    for stacked in stack_configs.stacked_transformers(stack):
      _check_masking('encoder', stacked.mask_self_attention, must_mask=False)
      for layer in stack_configs.layer_templates(stacked):
        # The encoder has no decoding steps and needs no cache.
        if stack_configs.has_field(layer.tr_atten_tpl, 'decode_cache'):
          layer.tr_atten_tpl.decode_cache = False
    return stack

  def _configured_decoder(self) -> LayerTpl:
    stack = _configured_stack(
      'decoder',
      self.decoder_stacked_transformer_tpl,
      self.model_dims,
      packed_input=self.packed_input,
    )
    _warn_of_ignored_ngrammers(
      'decoder', stack, self.decoder_post_attention_ngrammer_tpls
    )
    for stacked in stack_configs.stacked_transformers(stack):
      _check_masking('decoder', stacked.mask_self_attention, must_mask=True)
    return stack

  def _encoder_embedder(self) -> input_embedder.InputEmbedder:
    token_emb = self._target_emb()
    if self.encoder_embedding_tpl is not None:
      token_emb = self.encoder_embedding_lookup
    position_emb = None
    if self.position_emb_tpl is not None:
      position_emb = self.position_emb
    elif self.encoder_position_emb_tpl is not None:
      position_emb = self.encoder_position_emb
    has_ngrammer = self.encoder_ngrammer_tpl is not None
    return input_embedder.InputEmbedder(
      token_emb=token_emb,
      ngrammer=self.encoder_ngrammer if has_ngrammer else None,
      position_emb=position_emb,
    )

  def _decoder_embedder(self) -> input_embedder.InputEmbedder:
    position_emb = None
    if self.position_emb_tpl is not None:
      position_emb = self.position_emb
    elif self.decoder_position_emb_tpl is not None:
      position_emb = self.decoder_position_emb
    has_ngrammer = self.decoder_ngrammer_tpl is not None
    return input_embedder.InputEmbedder(
      token_emb=self._target_emb(),
      ngrammer=self.decoder_ngrammer if has_ngrammer else None,
      position_emb=position_emb,
    )

  def _target_emb(self) -> base_layer.BaseLayer:
    if self.decoder_embedding_tpl is not None:
      return self.decoder_embedding_lookup
    return self.softmax

  def _normalize_decoded(
    self, outputs: Float[Array, '*B D']
  ) -> Float[Array, '*B D']:
    return outputs if self.decoder_ln_tpl is None else self.decoder_ln(outputs)

  def _init_decode_state(
    self,
    targets: Int[Array, 'B T'],
    input_paddings: Num[Array, 'B S'],
    start_time_step: int,
  ) -> None:
    if not self.is_mutable_collection(base_layer.DECODE_CACHE):
      return
    self.update_decode_state(
      'time_step', jnp.asarray(start_time_step, jnp.int32)
    )
    self.update_decode_state('input_paddings', input_paddings)
    if self.decoder_ngrammer_tpl is not None:
      embeddings = self._decoder_embedder().lookup(targets)
      ngrammer_state.init_state(self, targets, embeddings, start_time_step)


def _configured_stack(
  name: str,
  stack_tpl: LayerTpl | None,
  model_dims: int,
  *,
  packed_input: bool,
) -> LayerTpl:
  if stack_tpl is None:
    raise ValueError(
      f'{name}_stacked_transformer_tpl must be the Config of a stack of '
      'layers, got None'
    )
  return stack_configs.for_model(
    stack_tpl, model_dims, packed_input=packed_input
  )


def _warn_of_ignored_ngrammers(
  name: str,
  stack_tpl: LayerTpl,
  ngrammer_tpls: Sequence[LayerTpl | None] | None,
) -> None:
  """Warns that post-attention n-grammers have no effect.

  Upstream assigns them after it has created the stack: its models with them
  have no such weights, and its checkpoints restore into models without.

  Raises:
    ValueError: their number is not that of the stack's layers.
  """
  if ngrammer_tpls is None:
    return
  field = f'{name}_post_attention_ngrammer_tpls'
  for stacked in stack_configs.stacked_transformers(stack_tpl):
    if len(ngrammer_tpls) != stacked.num_layers:
      raise ValueError(
        f'{field} must have an entry for each of {stacked.num_layers} layers '
        f'(None for no n-grammer), got {len(ngrammer_tpls)}'
      )
  logging.warning(
    '%s of TransformerEncoderDecoder is ignored, as in praxis; set '
    'ngrammer_tpls of %s_stacked_transformer_tpl instead',
    field,
    name,
  )


def _check_masking(name: str, is_masked: bool, *, must_mask: bool) -> None:
  if is_masked != must_mask:
    raise ValueError(
      f'mask_self_attention of the {name} must be {must_mask}, got {is_masked};'
      ' decoders mask later positions, encoders do not'
    )


def _sharded_templates(model_p: LayerTpl) -> model_sharding.ShardedTemplates:
  return model_sharding.ShardedTemplates(
    softmax_and_embeddings=[
      model_p.softmax_tpl,
      model_p.encoder_embedding_tpl,
      model_p.decoder_embedding_tpl,
    ],
    position_embs=[
      model_p.position_emb_tpl,
      model_p.encoder_position_emb_tpl,
      model_p.decoder_position_emb_tpl,
    ],
    ngrammers=[model_p.encoder_ngrammer_tpl, model_p.decoder_ngrammer_tpl],
    stacks=[
      model_p.encoder_stacked_transformer_tpl,
      model_p.decoder_stacked_transformer_tpl,
    ],
  )
