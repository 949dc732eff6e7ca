# SPDX-License-Identifier: Apache-2.0
"""The transformer layer (Attention Is All You Need, arXiv:1706.03762)."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle, py_utils
from praxis.layers import (
  attentions,
  decode_states,
  normalizations,
  stochastics,
)
from praxis.layers.attentions import attention_core, segments
from praxis.layers.transformers import (
  activation_summaries,
  feed_forward,
  norm_placement,
)

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
NestedMap = py_utils.NestedMap
NormPosition = norm_placement.NormPosition
template_field = pax_fiddle.template_field

KeysAndValues = attention_core.KeysAndValues
Attended = attention_core.Attended
_Mask = Float[Array, '#B #N #T S']


class Transformer(decode_states.DecodeStateContainer):
  """Self-attention, optional cross-attention and feed-forward blocks.

  References: Attention Is All You Need, https://arxiv.org/abs/1706.03762
  """

  # Model dimension, and hidden dimension of the feed-forward block.
  input_dims: int = 0
  hidden_dims: int = 0
  # Heads of the attention; None for the values of its template.
  num_heads: int | None = None
  dim_per_head: int | None = None
  # Dropout of the attention outputs.
  dropout_tpl: LayerTpl = template_field(stochastics.Dropout)
  atten_dropout_prob: float = 0.0
  residual_dropout_prob: float = 0.0
  relu_dropout_prob: float = 0.0
  # Factor of the attention outputs that are added to their inputs; that of the
  # feed-forward block is `residual_weight` of its template.
  atten_residual_weight: float = 1.0
  # Stochastic depth: the probability that an example skips a block.
  residual_droppath_prob: float = 0.0
  # Whether to create cross-attention, and whether calls without cross inputs
  # skip it. Without cross_atten_tpl it is configured like self-attention.
  use_cross_attention: bool = False
  allow_skip_cross_attention: bool = False
  cross_atten_tpl: LayerTpl | None = template_field(None)
  ln_tpl: LayerTpl = template_field(normalizations.LayerNorm)
  # One of norm_placement.NORM_POLICIES.
  norm_policy: str = 'pre'
  tr_atten_tpl: LayerTpl = template_field(attentions.DotProductAttention)
  # Accepted and ignored: the attention masks separate packed segments.
  packed_input: bool = False
  tr_fflayer_tpl: LayerTpl = template_field(feed_forward.TransformerFeedForward)
  # Adds a function of the layer's own input to the output; a LayerInputBranch.
  layer_input_tpl: LayerTpl | None = template_field(None)
  # Whether outputs are multiplied by a variable, which no gradient updates
  # (Gemma 4).
  use_output_scale: bool = False
  # Augments the self-attention output with n-grams; a VQNgrammer.
  ngrammer_tpl: LayerTpl | None = template_field(None)

  def setup(self) -> None:
    norm_placement.check_norm_policy(self.norm_policy)
    self._create_norms('layer_norm')
    self._create_self_attention()
    if self.use_cross_attention:
      self._create_norms('cross_layer_norm')
      self.create_child('cross_attention', self._cross_attention_tpl())
    self.create_child(
      'residual_dropout',
      self.dropout_tpl.clone().set(keep_prob=1.0 - self.residual_dropout_prob),
    )
    if self.residual_droppath_prob > 0.0:
      self.create_child(
        'residual_droppath',
        pax_fiddle.Config(
          stochastics.StochasticResidual,
          residual_weight=self.atten_residual_weight,
          survival_prob=1.0 - self.residual_droppath_prob,
        ),
      )
    self._create_feed_forward()
    if self.layer_input_tpl is not None:
      branch = self.layer_input_tpl.clone().set(model_dims=self.input_dims)
      self.create_child('layer_input', branch)
    if self.use_output_scale:
      self._create_output_scale()

  def __call__(
    self,
    inputs: Float[Array, 'B T D'],
    paddings: Num[Array, 'B T'] | None,
    attention_mask: Float[Array, '#B #N #T T'] | segments.SegmentMask,
    cross_inputs: Float[Array, 'B S D'] | None = None,
    cross_attention_mask: Float[Array, '#B #N #T S'] | None = None,
    segment_pos: Int[Array, '#B T'] | None = None,
    segment_ids: Int[Array, 'B T'] | None = None,
    layer_input: Float[Array, 'B T P'] | None = None,
    keys_and_values: KeysAndValues | None = None,
  ) -> tuple[Float[Array, 'B T D'], NestedMap]:
    """Returns the output, and the attention probabilities.

    A layer whose attention is a KeySourceAttention returns its keys and values
    instead of the probabilities of its self-attention.

    Args:
      inputs: of the layer.
      paddings: 1 for padded inputs.
      attention_mask: additive mask of self-attention, or segments.
      cross_inputs: keys and values of cross-attention.
      cross_attention_mask: additive mask of cross-attention.
      segment_pos: position of each input in its segment.
      segment_ids: segments of packed inputs, for routing by segment.
      layer_input: the layer's own, for `layer_input_tpl`.
      keys_and_values: those of another layer, which a SharedKeyAttention
        attends to.

    Raises:
      ValueError: cross_inputs are required and missing.
    """

    def self_attend(x: Array) -> tuple[Array, Attended]:
      if keys_and_values is None:
        return self._self_attend(x, attention_mask, segment_pos)
      return self.self_attention.attend(
        x, keys_and_values, attention_mask, segment_pos
      )

    def cross_attend(x: Array) -> tuple[Array, Array]:
      return self.cross_attention(
        x, cross_inputs, cross_inputs, cross_attention_mask
      )

    activation_summaries.add_input_statistics(self, inputs, paddings)
    probs = NestedMap()
    outputs, probs.self_atten = self._attention_block(
      self_attend, inputs, paddings
    )
    if self._uses_cross_inputs(cross_inputs):
      outputs, probs.cross_atten = self._attention_block(
        cross_attend, outputs, paddings, 'cross_'
      )
    outputs = self._feed_forward(inputs, outputs, paddings, segment_ids)
    outputs = self._finish_output(outputs, layer_input)
    return checkpoint_name(outputs, 'transformer_layer_out'), probs

  def extend_step(
    self,
    inputs: Float[Array, 'B *L D'],
    *,
    time_step: Int[Array, ''] | int,
    segment_pos: Int[Array, ' B *L'] | None = None,
    attention_mask: Float[Array, '...'],
    cross_attention_mask: Float[Array, '...'] | None = None,
    layer_input: Float[Array, 'B *L P'] | None = None,
    keys_and_values: KeysAndValues | None = None,
  ) -> Float[Array, 'B *L D']:
    """Returns the output of one decoding step, or of L consecutive ones.

    Args:
      inputs: [B, D] for one step, [B, L, D] for several.
      time_step: index of the (first) step.
      segment_pos: position of each step in its segment.
      attention_mask: [B or 1, 1, S], or [B or 1, 1, L, S] for several steps.
      cross_attention_mask: the same for cross-attention; None skips it.
      layer_input: see `__call__`.
      keys_and_values: those of all cached steps; see `__call__`.

    Raises:
      ValueError: cross_attention_mask is required and missing.
    """

    def self_attend(x: Array) -> tuple[Array, None]:
      if keys_and_values is None:
        encoded = self._self_attend_step(
          x, attention_mask, time_step, segment_pos
        )
      else:
        encoded = self.self_attention.attend_step(
          x,
          keys_and_values,
          atten_mask=attention_mask,
          time_step=time_step,
          segment_pos=segment_pos,
        )
      return encoded, None

    def cross_attend(x: Array) -> tuple[Array, None]:
      encoded = self.cross_attention.extend_step(
        x,
        atten_mask=cross_attention_mask,
        time_step=time_step,
        segment_pos=segment_pos,
        is_cross_attention=True,
      )
      return encoded, None

    outputs, _ = self._attention_block(self_attend, inputs, None)
    if self._uses_cross_inputs(cross_attention_mask):
      outputs, _ = self._attention_block(cross_attend, outputs, None, 'cross_')
    outputs = self._feed_forward_step(inputs, outputs, time_step)
    return self._finish_output(outputs, layer_input)

  def decoding_sequence_length(self) -> int:
    """Returns the number of steps that the decode cache can hold."""
    return self.self_attention.decoding_state_sequence_length()

  def transform_decode_state(
    self, transform_fn: Callable[[jax.Array, int, int], jax.Array]
  ) -> None:
    """Replaces every cached tensor by fn(tensor, batch_dim, time_dim)."""
    super().transform_decode_state(transform_fn)
    if self.use_cross_attention:
      self.cross_attention.transform_decode_state(
        transform_fn, is_cross_attention=True
      )

  def _visit_decode_states(
    self, visit: Callable[[base_layer.BaseLayer], None]
  ) -> None:
    visit(self.self_attention)

  # Overridden by variants that replace self-attention or feed-forward.

  def _create_self_attention(self) -> None:
    attention = self._attention_tpl(self.tr_atten_tpl)
    if self.ngrammer_tpl is not None:
      attention.ngrammer_tpl = self.ngrammer_tpl
    self.create_child('self_attention', attention)

  def _create_feed_forward(self) -> None:
    self.create_child('ff_layer', self._feed_forward_tpl())

  def _self_attend(
    self,
    x: Float[Array, 'B T D'],
    mask: Array | segments.SegmentMask,
    pos: Array | None,
  ) -> tuple[Float[Array, 'B T D'], Attended]:
    """Returns self-attention of the normalized inputs, and probabilities."""
    return self.self_attention(
      x, x, x, mask, query_segment_pos=pos, key_segment_pos=pos
    )

  def _self_attend_step(
    self,
    x: Float[Array, 'B *L D'],
    mask: Array,
    time_step: Int[Array, ''] | int,
    pos: Array | None,
  ) -> Float[Array, 'B *L D']:
    return self.self_attention.extend_step(
      x, atten_mask=mask, time_step=time_step, segment_pos=pos
    )

  def _feed_forward(
    self,
    inputs: Float[Array, 'B T D'],
    outputs: Float[Array, 'B T D'],
    paddings: Num[Array, 'B T'] | None,
    segment_ids: Int[Array, 'B T'] | None,
  ) -> Float[Array, 'B T D']:
    """Returns the feed-forward block of the attention outputs.

    The `inputs` of the layer are for gated variants.
    """
    return self.ff_layer(outputs, paddings, segment_ids=segment_ids)

  def _feed_forward_step(
    self,
    inputs: Float[Array, 'B *L D'],
    outputs: Float[Array, 'B *L D'],
    time_step: Int[Array, ''] | int,
  ) -> Float[Array, 'B *L D']:
    return self.ff_layer.extend_step(outputs, time_step=time_step)

  # Blocks and templates.

  def _create_output_scale(self) -> None:
    scale = base_layer.WeightHParams(
      shape=[1],
      init=base_layer.WeightInit.Constant(1.0),
      mesh_shape=self.mesh_shape,
    )
    self.create_variable('output_scale', scale, trainable=False)

  def _finish_output(
    self,
    outputs: Float[Array, 'B *L D'],
    layer_input: Float[Array, 'B *L P'] | None,
  ) -> Float[Array, 'B *L D']:
    if self.layer_input_tpl is not None:
      outputs = self.layer_input(outputs, layer_input)
    if not self.use_output_scale:
      return outputs
    return outputs * self.get_var('output_scale').astype(outputs.dtype)

  def _attention_block(
    self,
    attend: Callable[[Array], tuple[Array, Attended]],
    inputs: Float[Array, 'B *L D'],
    paddings: Num[Array, ' B *L'] | None,
    prefix: str = '',
  ) -> tuple[Float[Array, 'B *L D'], Attended]:
    """Applies norms, attention and the residual connection by norm_policy."""

    def norm(position: NormPosition, x: Array) -> Array:
      return norm_placement.apply_norm(
        self, self.norm_policy, position, x, paddings, f'{prefix}layer_norm'
      )

    def summarize(name: str, value: Callable[[], Array]) -> None:
      activation_summaries.add_verbose_summary(
        self, f'{prefix}attention_{name}', value
      )

    summarize('input_rms', lambda: activation_summaries.rms(inputs))
    encoded, probs = attend(norm(NormPosition.INPUT, inputs))
    summarize('output_rms', lambda: activation_summaries.rms(encoded))
    branch = norm(NormPosition.OUTPUT, encoded)
    summarize('output_norm_rms', lambda: activation_summaries.rms(branch))
    branch = self.residual_dropout(branch)
    if self.residual_droppath_prob > 0.0:
      outputs = self.residual_droppath(inputs, branch)
    else:
      if self.atten_residual_weight != 1.0:
        branch = branch * self.atten_residual_weight
      outputs = inputs + branch
    outputs = norm(NormPosition.SUM, outputs)
    summarize(
      'output_rel_cos', lambda: activation_summaries.cosine(inputs, outputs)
    )
    return outputs, probs

  def _uses_cross_inputs(self, cross: Array | None) -> bool:
    if not self.use_cross_attention:
      return False
    if cross is None and not self.allow_skip_cross_attention:
      raise ValueError(
        'use_cross_attention=True needs cross_inputs, or in decoding '
        'cross_attention_mask, got None; set allow_skip_cross_attention=True '
        'to skip cross-attention'
      )
    return cross is not None

  def _create_norms(self, name: str) -> None:
    dims = self.input_dims
    norm_placement.create_norms(
      self, self.norm_policy, self.ln_tpl, dims, dims, name
    )

  def _attention_tpl(self, template: LayerTpl) -> LayerTpl:
    attention = template.clone().set(
      input_dim=self.input_dims,
      hidden_dim=self.input_dims,
      atten_dropout_prob=self.atten_dropout_prob,
    )
    if self.num_heads is not None:
      attention.num_heads = self.num_heads
    if self.dim_per_head is not None:
      attention.dim_per_head = self.dim_per_head
    return attention

  def _cross_attention_tpl(self) -> LayerTpl:
    if self.cross_atten_tpl is not None:
      return self._attention_tpl(self.cross_atten_tpl)
    attention = self._attention_tpl(self.tr_atten_tpl)
    # Queries and keys come from different sequences.
    if getattr(attention, 'combine_qkv', False):
      attention.combine_qkv = False
    return attention

  def _feed_forward_tpl(self) -> LayerTpl:
    return self.tr_fflayer_tpl.clone().set(
      input_dims=self.input_dims,
      hidden_dims=self.hidden_dims,
      norm_policy=self.norm_policy,
      relu_dropout_prob=self.relu_dropout_prob,
      residual_dropout_prob=self.residual_dropout_prob,
      residual_droppath_prob=self.residual_droppath_prob,
    )
