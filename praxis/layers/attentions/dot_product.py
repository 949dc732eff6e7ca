# SPDX-License-Identifier: Apache-2.0
"""Multi-head dot-product attention, over sequences and decoding steps.

The arithmetic is in attention_core.py, masks are in masks.py, and the cache for
decoding is in kv_cache.py; the layer here owns the variables and the options.

Shapes: B batch, T queries, S keys and values, L decoding steps, C batch of the
cache (B is a multiple of C when several samples continue one prompt), D model,
N heads, H head dimension. Keys and values have the head axes *K: none, fewer
heads (MQA, GQA), or N.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import base_ops, embedding_softmax, stochastics
from praxis.layers.attentions import (
  attention_core,
  dconv,
  head_logits,
  head_ngrams,
  head_norms,
  kernel_choice,
  kernel_inputs,
  kv_cache,
  masks,
  projections,
  segments,
)

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field

AttentionInputs = attention_core.AttentionInputs
CacheWriter = kv_cache.CacheWriter
QueryHeads = attention_core.QueryHeads
KeyHeads = attention_core.KeyHeads
Mask = attention_core.Mask
Bias = attention_core.Bias
Index = attention_core.Index
Positions = Int[Array, '#B T'] | None


class DotProductAttention(
  head_logits.HeadLogits,
  head_norms.HeadNorms,
  head_ngrams.HeadNgrams,
  kernel_choice.KernelAttention,
):
  """Attends with every head to the values whose keys match the queries.

  References: Attention Is All You Need, https://arxiv.org/abs/1706.03762
  """

  # Dropout of the attention probabilities.
  dropout_tpl: LayerTpl = template_field(stochastics.Dropout)
  atten_dropout_prob: float = 0.0
  # Applies a causal depthwise convolution to queries, keys and values.
  dconv_qkv: bool = False
  dconv_kernel_size: int = 3
  # Scales queries, by a learned scale per dimension or else by 1/√H.
  internal_enable_query_scale: bool = True
  internal_enable_per_dim_scale: bool = True
  # Whether that H is dim_per_head instead of hidden_dim / num_heads.
  scale_query_by_dim_per_head: bool = False
  # The factor of queries instead of 1/√H, if it is not learned.
  query_scale: float | None = None
  use_rotary_position_emb: bool = False
  # Whether only rotated keys are cached.
  consolidate_rope_key_state: bool = False
  rotary_position_emb_tpl: LayerTpl = template_field(
    embedding_softmax.RotaryPositionalEmbedding
  )
  cast_rotary_position_emb: bool = True
  # A bias per head and distance that is added to the logits.
  relative_bias_tpl: LayerTpl | None = template_field(None)
  # Whether the mask is written as an image summary.
  attention_mask_summary: bool = False
  # The products of queries with keys, and of probabilities with values.
  qk_einsum_tpl: LayerTpl = template_field(base_ops.EinsumOp)
  pv_einsum_tpl: LayerTpl = template_field(base_ops.EinsumOp)
  per_dim_scale_tpl: LayerTpl = template_field(projections.PerDimScale)
  causal_depthwise_conv1d_tpl: LayerTpl = template_field(
    dconv.CausalDepthwiseConv1D
  )

  class WeightSharding(head_logits.HeadLogits.WeightSharding):
    # Sharding of the weights of convolutions [N, H].
    dconv: pytypes.SplitDimsMapping = None

  # Whether logits depend on the distance between query and key index.
  _has_relative_logits: ClassVar[bool] = False
  has_kernel: ClassVar[bool] = True

  def setup(self) -> None:
    self._check_fields()
    self._create_projections()
    self._create_sinks()
    self._create_position_children()
    self._create_head_children()
    self._create_ngrammer()
    self.create_child('qk_einsum', self.qk_einsum_tpl.clone())
    self.create_child('pv_einsum', self.pv_einsum_tpl.clone())
    keep_prob = 1.0 - self.atten_dropout_prob
    dropout = self.dropout_tpl.clone().set(keep_prob=keep_prob)
    self.create_child('atten_dropout', dropout)

  def __call__(
    self,
    query_vec: Float[Array, 'B T Dq'],
    key_vec: Float[Array, 'B S Dk'],
    value_vec: Float[Array, 'B S Dv'],
    atten_mask: Float[Array, '#B #N #T S'] | segments.SegmentMask,
    query_segment_pos: Int[Array, '#B T'] | None = None,
    key_segment_pos: Int[Array, '#B S'] | None = None,
  ) -> tuple[Float[Array, 'B T Dq'], attention_core.Attended]:
    """Returns the attended values and the probabilities before dropout.

    The probabilities are [B, N, T, S], or as documented; None from a kernel.

    Args:
      query_vec: inputs of the queries.
      key_vec: inputs of the keys.
      value_vec: inputs of the values.
      atten_mask: additive (see masks.py), or segments, which kernels read.
      query_segment_pos: position of each query in its segment; its index when
        None.
      key_segment_pos: likewise of each key.
    """
    length = query_vec.shape[1]
    num_keys = length if key_vec.shape[1] == length else None
    atten_mask = self._restrict_mask(atten_mask, query_segment_pos, 0, num_keys)
    self._check_call(query_vec, key_vec, value_vec, atten_mask)
    writer = self._prefill_writer()
    query, key, value = self._project(query_vec, key_vec, value_vec)
    query = self._prepare_query(query, query_segment_pos, writer)
    key = self._prepare_key(key, key_segment_pos, writer)
    value = self._prepare_value(value, key_segment_pos, writer)
    heads = kernel_inputs.Heads(query, key, value)
    encoded, attended = self._attend_heads(
      heads, atten_mask, query_segment_pos, key_segment_pos
    )
    split = self.activation_split_dims_mapping.bld
    return self._project_output(encoded, query_vec, split), attended

  def _attend_heads(
    self,
    heads: kernel_inputs.Heads,
    atten_mask: Float[Array, '#B #N #T S'] | segments.SegmentMask,
    query_pos: Positions,
    key_pos: Positions,
  ) -> tuple[QueryHeads, attention_core.Attended]:
    """Returns the attended values and what the call returns with its output.

    Args:
      heads: queries, keys and values, as they attend.
      atten_mask: that of the call.
      query_pos: position of each query in its segment.
      key_pos: likewise of each key.
    """
    query, key, _ = heads
    bias = None
    if self.relative_bias_tpl is not None:
      bias = self.relative_bias(
        masks.step_positions(query_pos, 0, query.shape[1]),
        masks.step_positions(key_pos, 0, key.shape[1]),
      )
    encoded, probs = self._attend_by_kernel(heads, atten_mask), None
    if encoded is None:
      inputs = AttentionInputs(*heads, segments.additive(atten_mask), bias)
      encoded, probs = self._attend(inputs, query_pos)
    if self.ngrammer_tpl is not None:
      encoded = self._add_ngrams(encoded, probs, key_pos)
    return encoded, probs

  def _restrict_mask(
    self,
    mask: Float[Array, '#B #N #T S'] | segments.SegmentMask,
    pos: Positions,
    first_query: attention_core.Index,
    num_keys: int | None,
  ) -> Float[Array, '#B #N #T S'] | segments.SegmentMask:
    """Returns a mask that also hides what this attention never sees.

    Args:
      mask: that of a call or of steps.
      pos: of each query in its segment.
      first_query: index of the first one.
      num_keys: those of the sequence of the queries; None for another one.
    """
    del pos, first_query, num_keys
    return mask

  def _check_call(
    self,
    query_vec: Float[Array, '...'],
    key_vec: Float[Array, '...'],
    value_vec: Float[Array, '...'],
    atten_mask: Array | segments.SegmentMask,
  ) -> None:
    """Checks the arguments of a call; writes the mask if configured.

    Raises:
      ValueError: shapes do not fit.
    """
    dims = [self._input_dim(name) for name in attention_core.INPUT_NAMES]
    attention_core.check_inputs((query_vec, key_vec, value_vec), dims)
    batch, length = query_vec.shape[:2]
    attention_core.check_mask(
      atten_mask, batch, self.num_heads, length, key_vec.shape[1]
    )
    if self.attention_mask_summary:
      self.add_summary(
        'attention_mask',
        lambda: jnp.moveaxis(segments.additive(atten_mask), 1, -1),
        base_layer.SummaryType.IMAGE,
      )

  def extend_step(
    self,
    query_vec: Float[Array, 'B *L D'],
    *,
    atten_mask: Float[Array, '...'],
    time_step: Int[Array, ''] | int,
    segment_pos: Int[Array, ' B *L'] | None,
    is_cross_attention: bool = False,
  ) -> Float[Array, 'B *L D']:
    """Returns the attended values for one or several decoding steps.

    Keys and values of the steps are written to the cache; cross attention reads
    those that the forward pass cached.

    Args:
      query_vec: input of one step, or of several with a time axis.
      atten_mask: additive, [B, C or 1, 1, S], or [B, C or 1, 1, L, S] for L
        steps.
      time_step: index of the (first) step.
      segment_pos: position of each step in its segment; its index when None.
      is_cross_attention: whether keys come from another sequence.
    """
    is_single = query_vec.ndim == 2
    if is_single:
      query_vec = query_vec[:, jnp.newaxis]
    batch, steps = query_vec.shape[:2]
    atten_mask = masks.expand_step_mask(atten_mask, batch)
    pos = masks.step_positions(segment_pos, time_step, steps)
    pos = jnp.broadcast_to(pos, (batch, steps))
    writer = self._step_writer(time_step)
    if is_cross_attention:
      query = self._prepare_query(self.query(query_vec), pos, writer)
      key, value = map(self.get_decode_state, self._cached_names())
    else:
      query, key, value = self._project_step(query_vec)
      query = self._prepare_query(query, pos, writer)
      key = self._prepare_key(key, pos, writer)
      value = self._prepare_value(value, pos, writer)
    length = self.decoding_state_sequence_length()
    attention_core.check_mask(atten_mask, batch, self.num_heads, steps, length)
    num_keys = None if is_cross_attention else length
    atten_mask = segments.additive(
      self._restrict_mask(atten_mask, pos, time_step, num_keys)
    )
    bias = None
    if self.relative_bias_tpl is not None:
      rows = [
        self.relative_bias.extend_step(length, time_step + i)
        for i in range(steps)
      ]
      bias = jnp.concatenate(rows, axis=2)
    if steps == 1:
      encoded, probs = self._dot_atten_one_step(
        query[:, 0], *self._cached_names(), atten_mask[:, :, 0], bias, time_step
      )
      encoded = encoded[:, jnp.newaxis]
      if probs is not None and self._uses_ngram_scores():
        probs = probs[:, :, jnp.newaxis]
    else:
      inputs = AttentionInputs(query, key, value, atten_mask, bias)
      encoded, probs = self._attend_rows(inputs, time_step)
    if self.ngrammer_tpl is not None:
      encoded = self._add_step_ngrams(encoded, probs, time_step, pos)
    outputs = self._project_output(
      encoded, query_vec, self._step_output_split()
    )
    return outputs[:, 0] if is_single else outputs

  def check_decoding(self, *, prefill: bool, sequential: bool) -> None:
    """Checks that the layer supports a way of decoding.

    Args:
      prefill: ignored; a forward pass fills the cache.
      sequential: whether cached steps are in order; see decode_states.

    Raises:
      ValueError: an option depends on the order of steps.
    """
    del prefill
    if sequential:
      return
    order_dependent = {
      'relative_bias_tpl': self.relative_bias_tpl is not None,
      'dconv_qkv': self.dconv_qkv,
      'ngrammer_tpl': self.ngrammer_tpl is not None,
      'its window': self._window() is not None,
      'its distance of query and key': self._has_relative_logits,
    }
    if names := [name for name, is_set in order_dependent.items() if is_set]:
      raise ValueError(
        f'{type(self).__name__} {self.name!r} must not depend on the order of '
        f'steps in a flat beam search, got {", ".join(names)}; use '
        'BeamSearchHParams'
      )

  def _create_position_children(self) -> None:
    if self.use_rotary_position_emb:
      self.create_child(
        'rotary_position_emb',
        self.rotary_position_emb_tpl.clone().set(
          embedding_dims=self._head_dim(),
          cast_as_fprop_dtype=self.cast_rotary_position_emb,
        ),
      )
    if self.relative_bias_tpl is not None:
      bias = self.relative_bias_tpl.clone().set(num_heads=self.num_heads)
      self.create_child('relative_bias', bias)

  def _create_head_children(self) -> None:
    """Creates the layers applied to projected queries, keys and values."""
    if self.internal_enable_query_scale and self.internal_enable_per_dim_scale:
      scale = self.per_dim_scale_tpl.clone()
      self.create_child('per_dim_scale', scale.set(dim=self._head_dim()))
    self._create_head_norms()
    if self.dconv_qkv:
      for name in ('dconv_q', 'dconv_k', 'dconv_v'):
        conv = self.causal_depthwise_conv1d_tpl.clone().set(
          kernel_size=self.dconv_kernel_size,
          hidden_dims=[self.num_heads, self._head_dim()],
        )
        conv.weight_split_dims_mapping.wt = self.weight_split_dims_mapping.dconv
        self.create_child(name, conv)

  # From projected heads to the queries, keys and values of the attention. The
  # writer caches every stage and, in decoding, returns all cached steps.

  def _prepare_query(
    self, query: QueryHeads, pos: Positions, writer: CacheWriter
  ) -> QueryHeads:
    if self.dconv_qkv:
      query = writer.convolve(self.dconv_q, 'query_state', query, pos)
    query = self._norm_heads('layer_norm_q', query, before_rotary=True)
    if self.use_rotary_position_emb:
      query = self.rotary_position_emb(query, pos)
    query = self._norm_heads('layer_norm_q', query, before_rotary=False)
    return query

  def _prepare_key(
    self, key: KeyHeads, pos: Positions, writer: CacheWriter
  ) -> Float[Array, '...']:
    name = 'key_state'
    if self.dconv_qkv:
      key = writer.convolve(self.dconv_k, name, key, pos)
      name = 'key_post_dconv'
    key = self._norm_heads('layer_norm_k', key, before_rotary=True)
    if self.use_rotary_position_emb:
      if not self.consolidate_rope_key_state:
        writer.write(name, key)
        name = 'key_post_rotary_pos_emb'
      key = self.rotary_position_emb(key, pos)
    key = self._norm_heads('layer_norm_k', key, before_rotary=False)
    return writer.write(name, key)

  def _prepare_value(
    self, value: KeyHeads, pos: Positions, writer: CacheWriter
  ) -> Float[Array, '...']:
    value = self._norm_value(value)
    if not self.dconv_qkv:
      return writer.write('value_state', value)
    value = writer.convolve(self.dconv_v, 'value_state', value, pos)
    return writer.write('value_post_dconv', value)

  def _cached_names(self) -> tuple[str, str]:
    """Returns the names of the cached keys and values to attend to."""
    key = 'key_post_dconv' if self.dconv_qkv else 'key_state'
    if self.use_rotary_position_emb and not self.consolidate_rope_key_state:
      key = 'key_post_rotary_pos_emb'
    value = 'value_post_dconv' if self.dconv_qkv else 'value_state'
    return key, value

  def _kernel_spec(
    self, mask: segments.SegmentMask
  ) -> kernel_inputs.KernelSpec:
    split = self.activation_split_dims_mapping.blnh
    return kernel_inputs.KernelSpec(
      mask,
      self._window(),
      self.atten_logit_cap,
      split,
      self._extra_logit(),
    )

  def _kernel_queries(self, query: QueryHeads) -> QueryHeads:
    return self._scale_query(query) * self._logit_transform().scale

  def _unsupported_by_kernels(self) -> dict[str, bool]:
    return {
      'relative_bias_tpl': self.relative_bias_tpl is not None,
      'ngram_using_attention_scores': self._uses_ngram_scores(),
      # Subclasses replace the children of the templates, as for quantization.
      'qk_einsum': type(self.qk_einsum) is not base_ops.EinsumOp,
      'pv_einsum': type(self.pv_einsum) is not base_ops.EinsumOp,
      'atten_dropout_prob': self.atten_dropout_prob > 0 and not self.do_eval,
    }

  def _attend(
    self, inputs: AttentionInputs, query_pos: Positions
  ) -> tuple[QueryHeads, Float[Array, 'B N ...'] | None]:
    """Returns the attended values of whole sequences, and the probabilities."""
    del query_pos
    return self._attend_dense(inputs, 0, add_summaries=True)

  def _attend_dense(
    self,
    inputs: AttentionInputs,
    first_query: Index,
    add_summaries: bool = False,
  ) -> tuple[QueryHeads, Float[Array, 'B N T S']]:
    """Attends with the logits of all queries and keys in memory.

    The first query has the index `first_query` among the keys.
    """
    query, key, value, mask, bias = inputs
    window = self._window()
    if window is not None:
      lengths = query.shape[1], key.shape[1]
      mask = jnp.minimum(mask, window.mask(*lengths, first_query, mask.dtype))
    logits = self._logits(self._scale_query(query), key, first_query)
    if add_summaries:
      transform = self._logit_transform()
      attention_core.summarize_logits(self, logits, mask, bias, transform)
    probs = self._probs(logits, mask, bias).astype(key.dtype)
    encoded = attention_core.attend_to_values(
      self.pv_einsum, self.atten_dropout(probs), value
    )
    return self._shard_heads(checkpoint_name(encoded, 'context')), probs

  def _dot_atten_one_step(
    self,
    query: Float[Array, 'B N H'],
    key_state_name: str,
    value_state_name: str,
    atten_mask: Float[Array, '#B #N S'],
    relative_bias: Float[Array, '#B N 1 S'] | None = None,
    time_step: Index | None = None,
  ) -> tuple[Float[Array, 'B N H'], Float[Array, 'B N ...'] | None]:
    """Attends from one decoding step to the cached keys; for subclasses.

    Only n-grams that use attention scores read the probabilities.

    Args:
      query: not yet scaled.
      key_state_name: name of the cached keys.
      value_state_name: name of the cached values.
      atten_mask: additive.
      relative_bias: added to the logits.
      time_step: index of the step.
    """
    key, value = map(self.get_decode_state, (key_state_name, value_state_name))
    return self._dot_atten_one_step_from_qkv(
      query, key, value, atten_mask, relative_bias, time_step
    )

  def _dot_atten_one_step_from_qkv(
    self,
    query: Float[Array, 'B N H'],
    key: Float[Array, '...'],
    value: Float[Array, '...'],
    atten_mask: Float[Array, '#B #N S'],
    relative_bias: Float[Array, '#B N 1 S'] | None = None,
    time_step: Index | None = None,
  ) -> tuple[Float[Array, 'B N H'], Float[Array, 'B N ...'] | None]:
    """Attends as `_dot_atten_one_step`, to keys and values; for subclasses.

    Args:
      query: not yet scaled.
      key: of all cached steps.
      value: of all cached steps.
      atten_mask: additive.
      relative_bias: added to the logits.
      time_step: index of the step, for a window and for relative logits; None:
        0.
    """
    mask = atten_mask[:, :, jnp.newaxis]
    query = query[:, jnp.newaxis]
    inputs = AttentionInputs(query, key, value, mask, relative_bias)
    first_query = 0 if time_step is None else time_step
    encoded, probs = self._attend_rows(inputs, first_query)
    return encoded[:, 0], probs if probs is None else probs[:, :, 0]

  def _attend_rows(
    self, inputs: AttentionInputs, first_query: Index
  ) -> tuple[QueryHeads, Float[Array, 'B N L ...']]:
    """Attends from consecutive queries, such as decoding steps, to the cache.

    B / C samples in a row that continue one cached example become more queries
    of it, so that its keys are read once. See `_attend_dense`.
    """
    query, key = inputs.query, inputs.key
    if query.shape[0] % key.shape[0]:
      raise ValueError(
        f'the batch of query_vec must be a multiple of {key.shape[0]}, the '
        f'batch of the cache, got {query.shape[0]}; repeat each example as '
        'often'
      )
    window = self._window()
    if window is not None:
      span = window.key_span(first_query, query.shape[1], key.shape[1])
      inputs = inputs.slice_keys(span)
      first_query -= span[0]
    if self._has_relative_logits or window is not None:
      inputs = inputs.repeat_keys()
    if query.shape[0] == inputs.key.shape[0]:
      return self._attend_dense(inputs, first_query)
    return attention_core.attend_with_folded_samples(
      lambda folded: self._attend_dense(folded, 0), inputs
    )

  def _window(self) -> masks.ContextWindow | None:
    """Returns the window that limits the mask further; None for no limit."""
    return None

  def _logits(
    self, query: QueryHeads, key: KeyHeads, first_query: Index
  ) -> Float[Array, 'B N T S']:
    """Returns the products of scaled queries and keys; see `_attend_dense`."""
    del first_query
    return attention_core.dot_product_logits(self.qk_einsum, query, key)

  def _scale_query(self, query: QueryHeads) -> QueryHeads:
    if not self.internal_enable_query_scale:
      return query
    if self.internal_enable_per_dim_scale:
      return self.per_dim_scale(query)
    if self.query_scale is not None:
      return query * self.query_scale
    by_head_dim = self.scale_query_by_dim_per_head or not self.hidden_dim
    dim = self._head_dim() if by_head_dim else self.hidden_dim // self.num_heads
    return query * dim**-0.5

  def _check_fields(self) -> None:
    """Raises ValueError if fields exclude each other."""
    self._check_implementation()
    self._check_extra_logit()
    attention_core.check_dims(
      self.input_dim, self.num_heads, self.dim_per_head, self.hidden_dim
    )
    if self.combine_qkv and isinstance(self.input_dim, Mapping):
      raise ValueError(
        'input_dim must be one number with combine_qkv=True, got '
        f'{self.input_dim}; set combine_qkv=False'
      )
    if self.consolidate_rope_key_state and (
      self.dconv_qkv or not self.use_rotary_position_emb
    ):
      raise ValueError(
        'consolidate_rope_key_state=True needs use_rotary_position_emb=True '
        f'and dconv_qkv=False, got {self.use_rotary_position_emb} and '
        f'{self.dconv_qkv}; set it to False'
      )
