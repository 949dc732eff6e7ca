# SPDX-License-Identifier: Apache-2.0
"""An encoder of one sequence, and a decoder that attends to it."""

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
)
from praxis.layers.transformer_models import (
  model_losses,
  model_sharding,
  ngrammer_state,
  segments,
  sides,
)
from praxis.nested_map import NestedMap

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class TransformerEncoderDecoder(decode_states.DecodeStateContainer):
  """Scores target ids given input ids: B examples, S inputs, T targets.

  The encoder sees all of its segment; the decoder sees the targets so far and
  all that the encoder makes of the segment.
  """

  # Added to the embeddings of both sides; or, if this is None, to each its own.
  position_emb_tpl: LayerTpl | None = template_field(
    embedding_softmax.PositionalEmbedding
  )
  encoder_position_emb_tpl: LayerTpl | None = template_field(None)
  # The encoder's layers: a stack, a repeated or a pipelined one.
  encoder_stacked_transformer_tpl: LayerTpl | None = template_field(None)
  # Changes the embedding of inputs by the neighbours' ids.
  encoder_ngrammer_tpl: LayerTpl | None = template_field(None)
  # N-grammers of the encoder's layers, after their attention.
  encoder_post_attention_ngrammer_tpls: Sequence[LayerTpl | None] | None = (
    template_field(None)
  )
  # Embeds inputs; what embeds targets does when it is absent.
  encoder_embedding_tpl: LayerTpl | None = template_field(None)
  # The same for the decoder; its stack has use_cross_attention, and the softmax
  # embeds targets when decoder_embedding_tpl is absent.
  decoder_position_emb_tpl: LayerTpl | None = template_field(None)
  decoder_stacked_transformer_tpl: LayerTpl | None = template_field(None)
  decoder_ngrammer_tpl: LayerTpl | None = template_field(None)
  decoder_post_attention_ngrammer_tpls: Sequence[LayerTpl | None] | None = (
    template_field(None)
  )
  decoder_embedding_tpl: LayerTpl | None = template_field(None)
  # Size of what goes from layer to layer.
  model_dims: int = 0
  # Scores targets.
  softmax_tpl: LayerTpl = template_field(
    embedding_softmax.SharedEmbeddingSoftmax
  )
  # Whether several examples share a row, told apart by segment ids.
  packed_input: bool = False
  # Normalise what the last layer of each side puts out.
  encoder_ln_tpl: LayerTpl | None = template_field(normalizations.LayerNorm)
  decoder_ln_tpl: LayerTpl | None = template_field(normalizations.LayerNorm)

  @classmethod
  def set_sharding_params_v1(cls, model_p: Any, **options: Any) -> Any:
    """Splits a Config over data and model; see `sharding.set_v1`."""
    return model_sharding.set_v1(model_p, **options)

  @classmethod
  def set_sharding_params_with_expert_parallelism(
    cls, model_p: Any, *, data_expert_axis: str, **options: Any
  ) -> Any:
    """As `set_sharding_params_v1`, with an axis that splits experts too."""
    return model_sharding.set_v1(
      model_p, data_expert_axis=data_expert_axis, **options
    )

  def setup(self) -> None:
    self._check_positive('model_dims')
    if self.position_emb_tpl is not None:
      self._check_no_own_positions()
      sides.create_sized(self, 'position_emb', self.position_emb_tpl)
    sides.create(self, 'encoder')
    sides.create(self, 'decoder')
    sides.create_sized(self, 'softmax', self.softmax_tpl)

  def encode(
    self,
    inputs: Int[Array, 'B S'],
    input_paddings: Num[Array, 'B S'],
    input_segment_ids: Int[Array, 'B S'] | None = None,
    input_segment_pos: Int[Array, 'B S'] | None = None,
    input_segment_mask: Float[Array, 'B 1 S S'] | None = None,
  ) -> Float[Array, 'B S D']:
    """Returns what the encoder makes of the inputs; see `__call__`."""
    ids, pos = segments.or_one_per_row(
      input_paddings, input_segment_ids, input_segment_pos
    )
    embedded = sides.embed(self, 'encoder', inputs, pos, input_paddings)
    if input_segment_mask is None:
      input_segment_mask = attentions.segment_mask(ids, dtype=embedded.dtype)
    outputs = self.encoder(
      embedded,
      input_paddings,
      segment_mask=input_segment_mask,
      segment_pos=pos,
    )
    return sides.finish(self, 'encoder', outputs)

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
    """Scores `labels`, or without them the token after each target.

    Args:
      inputs: ids that the encoder reads.
      input_paddings: 1 where there is no input.
      targets: ids that the decoder reads.
      target_paddings: 1 where there is no target.
      labels: class_ids, or class_probabilities, and class_weights, [B, T].
      input_segment_ids: which example of its row an input belongs to, 0 none.
      input_segment_pos: position of an input in its example.
      input_segment_mask: an additive mask in place of the one made of these.
      target_segment_ids: likewise of targets; the same number, same example.
      target_segment_pos: position of a target in its example.
      target_segment_mask: an additive mask in place of the causal one.
      cross_segment_mask: an additive mask of what targets see of inputs.
      start_time_step: the step that decoding starts at.

    Returns:
      With labels what the softmax returns, and per_token_xent,
      per_sequence_xent, total_loss, aux_loss and aux_loss_weight; without
      labels logits, log_probs and probs.
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
    """Does what `__call__` does after `encode`."""
    input_ids, _ = segments.or_one_per_row(
      input_paddings, input_segment_ids, input_segment_pos
    )
    ids, pos = segments.or_one_per_row(
      target_paddings, target_segment_ids, target_segment_pos
    )
    embedded = sides.embed(self, 'decoder', targets, pos, target_paddings)
    if cross_segment_mask is None:
      cross_segment_mask = attentions.segment_mask(
        ids, input_ids, embedded.dtype
      )
    if target_segment_mask is None:
      target_segment_mask = attentions.causal_segment_mask(ids, embedded.dtype)
    self._begin_decoding(targets, input_paddings, start_time_step)
    outputs = self.decoder(
      embedded,
      target_paddings,
      target_segment_mask,
      cross_inputs=encoder_output,
      cross_paddings=input_paddings,
      cross_segment_mask=cross_segment_mask,
      segment_pos=pos,
    )
    return self.compute_loss(sides.finish(self, 'decoder', outputs), labels)

  def compute_loss(
    self, activations: Float[Array, '*B D'], labels: NestedMap | None = None
  ) -> NestedMap:
    """Returns the scores, and with labels the losses; see `__call__`."""
    if labels is None:
      return model_losses.probabilities(self.softmax, activations)
    output = model_losses.score_labels(self.softmax, activations, labels)
    model_losses.add_aux_losses(self, output)
    return output

  def extend_step(self, targets: Int[Array, 'B *P']) -> NestedMap:
    """Scores the tokens after one step.

    The decode state holds what came before, and what the decoder's cross
    attention remembers of the inputs. Several samples may continue one example:
    B is then a multiple of the batch of inputs, rows of an example adjacent.

    Args:
      targets: the step's ids; of several per row, the last are, and those
        before it are seen by the n-grammer only.

    Returns:
      A map of logits, log_probs and probs, [B, V].
    """
    ids = targets if targets.ndim == 2 else targets[:, None]
    time_step = self.get_decode_state('time_step')
    paddings = self.get_decode_state('input_paddings')
    pos = jnp.full((ids.shape[0], 1), time_step, jnp.int32)
    embedded = sides.embed_step(self, 'decoder', ids, pos)
    outputs = self.decoder.extend_step(
      embedded[:, -1],
      time_step=time_step,
      cross_paddings=_of_samples(paddings, ids.shape[0]),
    )
    self.update_decode_state('time_step', time_step + 1)
    return self.compute_loss(sides.finish(self, 'decoder', outputs))

  def transform_decode_state(
    self, transform_fn: Callable[[Array, int, int], Array]
  ) -> None:
    """Replaces every cached array x by transform_fn(x, batch_dim, time_dim)."""
    ngrammer_state.transform(self, transform_fn)
    super().transform_decode_state(transform_fn)

  def _visit_decode_states(
    self, visit: Callable[[base_layer.BaseLayer], None]
  ) -> None:
    visit(self.decoder)

  # Helpers.

  def _check_no_own_positions(self) -> None:
    for name in ('encoder_position_emb_tpl', 'decoder_position_emb_tpl'):
      if getattr(self, name) is not None:
        raise ValueError(
          f'{name} must be None with position_emb_tpl, got a template; set '
          'position_emb_tpl=None to have one for each side'
        )

  def _begin_decoding(
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
      embedded = sides.look_up(self, 'decoder', targets)
      ngrammer_state.begin(self, targets, embedded, start_time_step)


def _of_samples(paddings: Num[Array, 'C S'], batch: int) -> Num[Array, 'B S']:
  """Repeats the rows of examples for their samples."""
  return jnp.repeat(paddings, batch // paddings.shape[0], axis=0)
