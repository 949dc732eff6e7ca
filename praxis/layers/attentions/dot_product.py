# SPDX-License-Identifier: Apache-2.0
"""Multi-head dot-product attention.

Shapes: B batch, T queries, S keys and values, D model, N heads, H head.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import base_ops, embedding_softmax, stochastics
from praxis.layers.attentions import (
  checks,
  dconv,
  positions,
  products,
  projections,
  stepping,
)

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
SplitDimsMapping = pytypes.SplitDimsMapping
template_field = pax_fiddle.template_field

_Heads = products.Heads
_SourceHeads = products.SourceHeads


class DotProductAttention(stepping.SteppingAttention):
  """Attends with every head to the values whose keys match the queries.

  References: Attention Is All You Need, https://arxiv.org/abs/1706.03762
  """

  # Size of the last dimension of the inputs; or one size each, by the keys
  # 'query', 'key' and 'value'. The output has the size of the query.
  input_dim: int | Mapping[str, int] = 0
  # Size of all heads together; not used when dim_per_head is given.
  hidden_dim: int = 0
  num_heads: int = 1
  # Size of one head; hidden_dim / num_heads when absent.
  dim_per_head: int | None = None
  # Dropout of the attention probabilities.
  dropout_tpl: LayerTpl = template_field(stochastics.Dropout)
  atten_dropout_prob: float = 0.0
  # The projections to heads and back.
  proj_tpl: LayerTpl = template_field(projections.AttentionProjection)
  # Whether queries, keys and values pass a causal depthwise convolution.
  dconv_qkv: bool = False
  dconv_kernel_size: int = 3
  # Whether projections start Gaussian with the deviations of GShard. Has no
  # effect on a combined projection.
  internal_gshard_gaussian_init: bool = False
  # Whether one weight projects to queries, keys and values, which then have to
  # come from the same input.
  combine_qkv: bool = False
  combined_qkv_proj_tpl: LayerTpl = template_field(
    projections.CombinedQKVProjectionLayer
  )
  use_bias: bool = True
  # Whether the output projection stores its weight as [N, H, D].
  output_proj_use_nhd_shape: bool = False
  # Whether queries are scaled, and if so whether by a learned scale per
  # dimension or by 1/√H.
  internal_enable_query_scale: bool = True
  internal_enable_per_dim_scale: bool = True
  # Whether H of that 1/√H is dim_per_head and not hidden_dim / num_heads.
  scale_query_by_dim_per_head: bool = False
  # Whether logits are divided by √H (beside any scale of the queries).
  scale_logits_by_head_dims: bool = False
  # Logits are kept within ± this number by a tanh; 0 leaves them.
  atten_logit_cap: float = 0.0
  use_rotary_position_emb: bool = False
  # Whether the cache holds rotated keys only.
  consolidate_rope_key_state: bool = False
  rotary_position_emb_tpl: LayerTpl | None = template_field(
    embedding_softmax.RotaryPositionalEmbedding
  )
  cast_rotary_position_emb: bool = True
  # Adds a bias per head and distance to the logits.
  relative_bias_tpl: LayerTpl | None = template_field(None)
  # A constant logit that takes part in the softmax and contributes no value.
  attention_extra_logit: float | None = None
  # Adds n-grams to what the heads attended to; as ngrammer.VQNgrammer does.
  ngrammer_tpl: LayerTpl | None = template_field(None)
  # Whether the mask is recorded as an image summary.
  attention_mask_summary: bool = False
  # Whether queries that see nothing give 0 and not the mean of the values.
  zero_fully_masked: bool = False
  # The two products of the attention.
  qk_einsum_tpl: LayerTpl = template_field(base_ops.EinsumOp)
  pv_einsum_tpl: LayerTpl = template_field(base_ops.EinsumOp)
  per_dim_scale_tpl: LayerTpl = template_field(positions.PerDimScale)
  causal_depthwise_conv1d_tpl: LayerTpl = template_field(
    dconv.CausalDepthwiseConv1D
  )
  # Normalises queries and keys, each head by itself.
  ln_tpl: LayerTpl | None = template_field(None)
  # Whether projections are sharded as `blnh` in decoding, too.
  decoding_maybe_shard_projections: bool = False

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    # Of the projections, as [D, N, H], and of the convolutions, as [N, H].
    proj: SplitDimsMapping = None
    dconv: SplitDimsMapping = None

  class ActivationSharding(base_layer.BaseLayer.ActivationSharding):
    # Of tensors with heads, and of the output.
    blnh: SplitDimsMapping = None
    bld: SplitDimsMapping = None

  def setup(self) -> None:
    self._check_fields()
    if self.combine_qkv:
      combined = self._with_heads(self.combined_qkv_proj_tpl)
      self.create_child(
        'combined_qkv', combined.set(input_dim=self._input_size('query'))
      )
    else:
      for name in checks.INPUTS:
        self.create_child(name, self._input_projection(name))
    self.create_child('post', self._output_projection())
    self._create_position_children()
    self._create_head_children()
    if self.ngrammer_tpl is not None:
      self.create_child('ngrammer', self.ngrammer_tpl.clone())
    self.create_child('qk_einsum', self.qk_einsum_tpl.clone())
    self.create_child('pv_einsum', self.pv_einsum_tpl.clone())
    dropout = self.dropout_tpl.clone()
    self.create_child(
      'atten_dropout', dropout.set(keep_prob=1.0 - self.atten_dropout_prob)
    )

  def __call__(
    self,
    query_vec: Float[Array, 'B T Dq'],
    key_vec: Float[Array, 'B S Dk'],
    value_vec: Float[Array, 'B S Dv'],
    atten_mask: Float[Array, '#B #N #T S'],
    query_segment_pos: Int[Array, '#B T'] | None = None,
    key_segment_pos: Int[Array, '#B S'] | None = None,
  ) -> tuple[Float[Array, 'B T Dq'], Float[Array, 'B N ...'] | None]:
    """Returns the attended values and the probabilities (before dropout).

    The probabilities are [B, N, T, S], where a subclass does not say otherwise.

    Args:
      query_vec: inputs of the queries.
      key_vec: inputs of the keys.
      value_vec: inputs of the values.
      atten_mask: additive; see masks.py.
      query_segment_pos: position of each query in its segment; its index when
        absent.
      key_segment_pos: likewise of each key.
    """
    sizes = [self._input_size(name) for name in checks.INPUTS]
    checks.check_inputs((query_vec, key_vec, value_vec), sizes)
    checks.check_mask(
      atten_mask,
      query_vec.shape[0],
      self.num_heads,
      query_vec.shape[1],
      key_vec.shape[1],
    )
    if self.attention_mask_summary:
      self.add_summary(
        'attention_mask',
        lambda: jnp.moveaxis(atten_mask, 1, -1),
        base_layer.SummaryType.IMAGE,
      )
    query, key, value = self._project(query_vec, key_vec, value_vec)
    query, key, value = self._normalize(query, key, value)
    if self.dconv_qkv:
      self._remember('query_state', query)
      query = self.dconv_q(query, 1, query_segment_pos)
    key = self._finish_key(key, key_segment_pos)
    value = self._finish_value(value, key_segment_pos)
    if self.use_rotary_position_emb:
      query = self.rotary_position_emb(query, query_segment_pos)
    bias = self._relative_bias(query, key, query_segment_pos, key_segment_pos)
    encoded, probs = self._attend_at(
      query, key, value, atten_mask, bias, query_segment_pos
    )
    if self.ngrammer_tpl is not None:
      self._remember('encoded_pre_ngrammer', encoded)
      encoded = self.ngrammer(
        input_ids=None,
        input_embs=encoded,
        segment_pos=key_segment_pos,
        merge_heads=False,
        attention_scores=self._ngram_scores(probs),
      )
    return self._post(encoded), probs

  # Children.

  def _create_position_children(self) -> None:
    if self.use_rotary_position_emb:
      self.create_child(
        'rotary_position_emb',
        self.rotary_position_emb_tpl.clone().set(
          embedding_dims=self._head_size(),
          cast_as_fprop_dtype=self.cast_rotary_position_emb,
        ),
      )
    if self.relative_bias_tpl is not None:
      relative_bias = self.relative_bias_tpl.clone()
      self.create_child(
        'relative_bias', relative_bias.set(num_heads=self.num_heads)
      )

  def _create_head_children(self) -> None:
    """Creates what works on projected queries, keys and values."""
    if self.internal_enable_query_scale and self.internal_enable_per_dim_scale:
      scale = self.per_dim_scale_tpl.clone()
      self.create_child('per_dim_scale', scale.set(dim=self._head_size()))
    if self.ln_tpl is not None:
      for name in ('layer_norm_q', 'layer_norm_k'):
        self.create_child(name, self.ln_tpl.clone().set(dim=self._head_size()))
    if self.dconv_qkv:
      for name in ('dconv_q', 'dconv_k', 'dconv_v'):
        conv = self.causal_depthwise_conv1d_tpl.clone().set(
          kernel_size=self.dconv_kernel_size,
          hidden_dims=[self.num_heads, self._head_size()],
        )
        conv.weight_split_dims_mapping.wt = self.weight_split_dims_mapping.dconv
        self.create_child(name, conv)

  def _input_projection(self, name: str) -> LayerTpl:
    input_size = self._input_size(name)
    proj = self._with_heads(self.proj_tpl).set(input_dim=input_size)
    if self.internal_gshard_gaussian_init:
      size = input_size * self._head_size() if name == 'query' else input_size
      proj.params_init = base_layer.WeightInit.Gaussian(size**-0.5)
    return proj

  def _output_projection(self) -> LayerTpl:
    proj = self._with_heads(self.proj_tpl).set(
      input_dim=self._input_size('query'),
      is_output_projection=True,
      use_nhd_shape=self.output_proj_use_nhd_shape,
    )
    if self.internal_gshard_gaussian_init:
      size = self.num_heads * self._head_size()
      proj.params_init = base_layer.WeightInit.Gaussian(size**-0.5)
    return proj

  def _with_heads(self, template: LayerTpl) -> LayerTpl:
    proj = template.clone().set(
      num_heads=self.num_heads,
      dim_per_head=self._head_size(),
      use_bias=self.use_bias,
    )
    proj.weight_split_dims_mapping.wt = self.weight_split_dims_mapping.proj
    return proj

  def _input_size(self, name: str) -> int:
    sizes = self.input_dim
    return sizes[name] if isinstance(sizes, Mapping) else sizes

  # Steps of the computation, in order.

  def _project(
    self, query_vec: Array, key_vec: Array, value_vec: Array
  ) -> tuple[_Heads, _SourceHeads, _SourceHeads]:
    if self.combine_qkv:
      is_one = query_vec is key_vec and query_vec is value_vec
      if not is_one and not self.is_initializing():
        raise ValueError(
          'query_vec, key_vec and value_vec must be the same array with '
          'combine_qkv=True; set combine_qkv=False for cross attention'
        )
      heads = self.combined_qkv(query_vec)
      names = ['combined_qkv_proj'] * 3
    else:
      heads = self.query(query_vec), self.key(key_vec), self.value(value_vec)
      names = ['query_proj', 'key_proj', 'value_proj']
    query, key, value = (
      checkpoint_name(self._shard_heads(x), name)
      for x, name in zip(heads, names, strict=True)
    )
    return query, key, value

  def _normalize(
    self, query: _Heads, key: _SourceHeads, value: _SourceHeads
  ) -> tuple[_Heads, _SourceHeads, _SourceHeads]:
    if self.ln_tpl is None:
      return query, key, value
    return self.layer_norm_q(query), self.layer_norm_k(key), value

  def _finish_key(
    self, key: _SourceHeads, pos: Int[Array, '#B S'] | None
  ) -> _SourceHeads:
    """Returns the key to attend with; caches it and what it was before."""
    name = 'key_state'
    if self.dconv_qkv:
      self._remember(name, key)
      key, name = self.dconv_k(key, 1, pos), 'key_post_dconv'
    if not self.use_rotary_position_emb:
      self._remember(name, key)
      return key
    rotated = self.rotary_position_emb(key, pos)
    if self.consolidate_rope_key_state:
      self._remember(name, rotated)
    else:
      self._remember(name, key)
      self._remember('key_post_rotary_pos_emb', rotated)
    return rotated

  def _finish_value(
    self, value: _SourceHeads, pos: Int[Array, '#B S'] | None
  ) -> _SourceHeads:
    self._remember('value_state', value)
    if self.dconv_qkv:
      value = self.dconv_v(value, 1, pos)
      self._remember('value_post_dconv', value)
    return value

  def _relative_bias(
    self,
    query: _Heads,
    key: _SourceHeads,
    query_pos: Int[Array, '#B T'] | None,
    key_pos: Int[Array, '#B S'] | None,
  ) -> Float[Array, '#B N T S'] | None:
    if self.relative_bias_tpl is None:
      return None
    if query_pos is None:
      query_pos = jnp.arange(query.shape[1])[jnp.newaxis]
    if key_pos is None:
      key_pos = jnp.arange(key.shape[1])[jnp.newaxis]
    return self.relative_bias(query_pos, key_pos)

  def _ngram_scores(
    self, probs: Float[Array, 'B N L S'] | None, step: int | None = None
  ) -> Array | None:
    """Returns the weights that the n-grammer wants, all or of one step."""
    if not getattr(self.ngrammer_tpl, 'ngram_using_attention_scores', False):
      return None
    return probs if step is None else probs[:, :, step]

  def _post(
    self, encoded: _Heads, *, is_step: bool = False
  ) -> Float[Array, 'B T D']:
    split = self._step_split() if is_step else self._output_split()
    outputs = base_layer.maybe_shard(
      self.post(encoded), split, self.mesh_axis_names
    )
    return checkpoint_name(outputs, 'out_proj')

  def _output_split(self) -> SplitDimsMapping:
    return self.activation_split_dims_mapping.bld

  def _step_split(self) -> SplitDimsMapping:
    split = self._output_split()
    return None if split is None else [split[0], None, split[2]]

  def _check_fields(self) -> None:
    checks.check_sizes(self)
    checks.check_options(self)
