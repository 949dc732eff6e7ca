# SPDX-License-Identifier: Apache-2.0
"""One transformer layer: attention, perhaps cross attention, feed-forward."""

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
from praxis.layers.transformers import feed_forward, reports, residual

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
NestedMap = py_utils.NestedMap
Place = residual.Place
template_field = pax_fiddle.template_field

_Mask = Float[Array, '#B #N #T S']


class Transformer(decode_states.HoldsDecodeStates):
  """A transformer layer.

  References: Attention Is All You Need, https://arxiv.org/abs/1706.03762
  """

  # Sizes of the input and output, and within the feed-forward block.
  input_dims: int = 0
  hidden_dims: int = 0
  # Of the attention; what the templates say when absent.
  num_heads: int | None = None
  dim_per_head: int | None = None
  # Dropout of the output of attention, and the probabilities of all dropouts.
  dropout_tpl: LayerTpl = template_field(stochastics.Dropout)
  atten_dropout_prob: float = 0.0
  residual_dropout_prob: float = 0.0
  relu_dropout_prob: float = 0.0
  # Probability that an example skips a block.
  residual_droppath_prob: float = 0.0
  # Whether there is attention to another sequence, whether it may be left out
  # by a call, and what it is; like the self attention when absent.
  use_cross_attention: bool = False
  allow_skip_cross_attention: bool = False
  cross_atten_tpl: LayerTpl | None = template_field(None)
  ln_tpl: LayerTpl = template_field(normalizations.LayerNorm)
  # Where to normalise; see residual.py.
  norm_policy: str = 'pre'
  tr_atten_tpl: LayerTpl = template_field(attentions.DotProductAttention)
  # Whether sequences hold several segments; then masks have to tell them apart.
  packed_input: bool = False
  tr_fflayer_tpl: LayerTpl = template_field(feed_forward.TransformerFeedForward)
  # Adds n-grams to what self attention puts out; a VQNgrammer.
  ngrammer_tpl: LayerTpl | None = template_field(None)

  def setup(self) -> None:
    residual.check_norm_policy(self.norm_policy)
    self._create_norms('layer_norm')
    self._create_self_attention()
    if self.use_cross_attention:
      self._create_norms('cross_layer_norm')
      self.create_child('cross_attention', self._cross_attention())
    dropout = self.dropout_tpl.clone()
    self.create_child(
      'residual_dropout',
      dropout.set(keep_prob=1.0 - self.residual_dropout_prob),
    )
    if self.residual_droppath_prob > 0.0:
      self.create_child(
        'residual_droppath', residual.droppath(self.residual_droppath_prob)
      )
    self._create_feed_forward()

  def __call__(
    self,
    inputs: Float[Array, 'B T D'],
    paddings: Num[Array, 'B T'] | None,
    attention_mask: Float[Array, '#B #N #T T'],
    cross_inputs: Float[Array, 'B S D'] | None = None,
    cross_attention_mask: Float[Array, '#B #N #T S'] | None = None,
    segment_pos: Int[Array, '#B T'] | None = None,
    segment_ids: Int[Array, 'B T'] | None = None,
  ) -> tuple[Float[Array, 'B T D'], NestedMap]:
    """Returns the output, and attention probabilities by kind.

    Args:
      inputs: of the layer.
      paddings: 1 where the inputs are padding.
      attention_mask: of self attention; additive, see attentions.
      cross_inputs: what cross attention attends to.
      cross_attention_mask: of cross attention.
      segment_pos: position of each input in its segment.
      segment_ids: segment of each input, for feed-forward blocks that ask.
    """

    def attend(x: Array) -> tuple[Array, Array | None]:
      return self._self_attend(x, attention_mask, segment_pos)

    def attend_cross(x: Array) -> tuple[Array, Array]:
      return self.cross_attention(
        x, cross_inputs, cross_inputs, cross_attention_mask
      )

    reports.report_inputs(self, inputs, paddings)
    probs = NestedMap()
    outputs, probs.self_atten = self._block(attend, inputs, paddings)
    if self._attends_cross(cross_inputs):
      outputs, probs.cross_atten = self._block(
        attend_cross, outputs, paddings, 'cross_'
      )
    outputs = self._feed(inputs, outputs, paddings, segment_ids)
    return checkpoint_name(outputs, 'transformer_layer_out'), probs

  def extend_step(
    self,
    inputs: Float[Array, 'B *L D'],
    *,
    time_step: Int[Array, ''] | int,
    segment_pos: Int[Array, 'B *L'] | None = None,
    attention_mask: Float[Array, '...'],
    cross_attention_mask: Float[Array, '...'] | None = None,
  ) -> Float[Array, 'B *L D']:
    """Returns the output of one decoding step, or of a run of them.

    Args:
      inputs: of the step, or with a time axis those of several.
      time_step: index of the (first) step.
      segment_pos: position of each step in its segment.
      attention_mask: [B or 1, 1, S], or [B or 1, 1, L, S] for several steps.
      cross_attention_mask: likewise of cross attention, which is left out
        without one.
    """

    def attend(x: Array) -> tuple[Array, None]:
      pos = segment_pos
      return self._self_attend_step(x, attention_mask, time_step, pos), None

    def attend_cross(x: Array) -> tuple[Array, None]:
      encoded = self.cross_attention.extend_step(
        x,
        atten_mask=cross_attention_mask,
        time_step=time_step,
        segment_pos=segment_pos,
        is_cross_attention=True,
      )
      return encoded, None

    outputs, _ = self._block(attend, inputs, None)
    if self._attends_cross(cross_attention_mask):
      outputs, _ = self._block(attend_cross, outputs, None, 'cross_')
    return self._feed_step(inputs, outputs, time_step)

  def decoding_sequence_length(self) -> int:
    """Returns for how many steps the decode cache has room."""
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

  def _each_decode_state(
    self, visit: Callable[[base_layer.BaseLayer], None]
  ) -> None:
    visit(self.self_attention)

  # What variants with another self attention, or without, override.

  def _create_self_attention(self) -> None:
    attention = self._attention(self.tr_atten_tpl)
    if self.ngrammer_tpl is not None:
      attention.ngrammer_tpl = self.ngrammer_tpl
    self.create_child('self_attention', attention)

  def _create_feed_forward(self) -> None:
    self.create_child('ff_layer', self._feed_forward())

  def _self_attend(
    self, x: Float[Array, 'B T D'], mask: Array, pos: Array | None
  ) -> tuple[Float[Array, 'B T D'], Array | None]:
    """Returns what follows the first norm, and attention probabilities."""
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

  def _feed(
    self,
    inputs: Float[Array, 'B T D'],
    outputs: Float[Array, 'B T D'],
    paddings: Num[Array, 'B T'] | None,
    segment_ids: Int[Array, 'B T'] | None,
  ) -> Float[Array, 'B T D']:
    """Returns what follows attention; `inputs` are the layer's."""
    del inputs
    return self.ff_layer(outputs, paddings, segment_ids=segment_ids)

  def _feed_step(
    self,
    inputs: Float[Array, 'B *L D'],
    outputs: Float[Array, 'B *L D'],
    time_step: Int[Array, ''] | int,
  ) -> Float[Array, 'B *L D']:
    del inputs
    return self.ff_layer.extend_step(outputs, time_step=time_step)

  # Parts.

  def _block(
    self,
    attend: Callable[[Array], tuple[Array, Array | None]],
    inputs: Float[Array, 'B *L D'],
    paddings: Num[Array, 'B *L'] | None,
    prefix: str = '',
  ) -> tuple[Float[Array, 'B *L D'], Array | None]:
    """Returns norm, attention and residual connection in the policy's order."""

    def normed(place: Place, x: Array) -> Array:
      return residual.norm(self, place, x, paddings, f'{prefix}layer_norm')

    def report(name: str, value: Callable[[], Array]) -> None:
      reports.report(self, f'{prefix}attention_{name}', value)

    report('input_rms', lambda: reports.rms(inputs))
    encoded, probs = attend(normed(Place.BEFORE, inputs))
    report('output_rms', lambda: reports.rms(encoded))
    branch = normed(Place.AFTER, encoded)
    report('output_norm_rms', lambda: reports.rms(branch))
    branch = self.residual_dropout(branch)
    if self.residual_droppath_prob > 0.0:
      outputs = self.residual_droppath(inputs, branch)
    else:
      outputs = inputs + branch
    outputs = normed(Place.SKIP, outputs)
    report('output_rel_cos', lambda: reports.cosine(inputs, outputs))
    return outputs, probs

  def _attends_cross(self, cross: Array | None) -> bool:
    if not self.use_cross_attention:
      return False
    if cross is None and not self.allow_skip_cross_attention:
      raise ValueError(
        'cross attention needs cross_inputs, or in decoding a '
        'cross_attention_mask, got None; set allow_skip_cross_attention=True '
        'to go without'
      )
    return cross is not None

  def _create_norms(self, name: str) -> None:
    size = self.input_dims
    residual.create_norms(self, self.ln_tpl, size, size, name)

  def _attention(self, template: LayerTpl) -> LayerTpl:
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

  def _cross_attention(self) -> LayerTpl:
    if self.cross_atten_tpl is not None:
      return self._attention(self.cross_atten_tpl)
    attention = self._attention(self.tr_atten_tpl)
    if getattr(attention, 'combine_qkv', False):
      attention.combine_qkv = False
    return attention

  def _feed_forward(self) -> LayerTpl:
    return self.tr_fflayer_tpl.clone().set(
      input_dims=self.input_dims,
      hidden_dims=self.hidden_dims,
      norm_policy=self.norm_policy,
      relu_dropout_prob=self.relu_dropout_prob,
      residual_dropout_prob=self.residual_dropout_prob,
      residual_droppath_prob=self.residual_droppath_prob,
    )
