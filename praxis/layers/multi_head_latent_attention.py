# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention (MLA): all keys and values from one latent.

A token's keys and values are projected from one latent of a low rank. Their
positions are in a separate part of the key, which all heads share and which
alone is rotated, so the decode cache has the latent and that part only.
Decoding steps attend to the latents without projecting them to heads: the
projection to keys is applied to the queries, that to values to the result.

Shapes: B batch, T queries, S keys and values, L decoding steps, D model, N
heads, Q and C ranks of queries and of keys and values, H head dimension without
position, R rotated head dimension, V head dimension of values.

References: DeepSeek-V2, arXiv:2405.04434, section 2.1.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import attentions, multi_query_attention, normalizations
from praxis.layers.attentions import (
  attention_core,
  dot_product,
  kernel_inputs,
  kv_cache,
  masks,
  segments,
)

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
SplitDimsMapping = pytypes.SplitDimsMapping
template_field = pax_fiddle.template_field

QueryHeads = attention_core.QueryHeads
Positions = dot_product.Positions

# The cached latents, followed by the rotated keys.
_CACHE = 'key_state'


class MultiHeadLatentAttention(attentions.DotProductAttention):
  """Attends to keys and values that are projected from a latent of each token.

  References: DeepSeek-V2, https://arxiv.org/abs/2405.04434; DeepSeek-V3,
  https://arxiv.org/abs/2412.19437
  """

  # Rank of the projection to queries; None for a projection of full rank.
  q_lora_rank: int | None = None
  # Dimension of the latent of keys and values.
  kv_lora_rank: int = 0
  # Dimensions of the part of queries and keys without position, of the rotated
  # part, and of values.
  qk_nope_head_dim: int = 0
  qk_rope_head_dim: int = 0
  v_head_dim: int = 0
  # The projections to latents and to the rotated key, and the latents' norm.
  down_proj_tpl: LayerTpl = template_field(
    multi_query_attention.OneHeadedAttentionProjection
  )
  latent_norm_tpl: LayerTpl = template_field(normalizations.RmsNorm)
  # Whether `down_proj_tpl` has a bias; the projections to heads have none.
  use_bias: bool = False
  use_rotary_position_emb: bool = True
  consolidate_rope_key_state: bool = True
  internal_enable_per_dim_scale: bool = False
  scale_query_by_dim_per_head: bool = True

  class WeightSharding(attentions.DotProductAttention.WeightSharding):
    # Sharding of projections to latents [D, Q] and [D, C].
    proj_headless: SplitDimsMapping = None

  def __call__(
    self,
    query_vec: Float[Array, 'B T D'],
    key_vec: Float[Array, 'B S D'],
    value_vec: Float[Array, 'B S D'],
    atten_mask: Float[Array, '#B #N #T S'] | segments.SegmentMask,
    query_segment_pos: Int[Array, '#B T'] | None = None,
    key_segment_pos: Int[Array, '#B S'] | None = None,
  ) -> tuple[Float[Array, 'B T D'], Float[Array, 'B N T S'] | None]:
    """Returns the attended values, and the probabilities, None from a kernel.

    Args:
      query_vec: inputs of the queries.
      key_vec: inputs of the keys.
      value_vec: the same array.
      atten_mask: additive (see masks.py), or segments, which kernels read.
      query_segment_pos: position of each query in its segment; its index when
        None.
      key_segment_pos: likewise of each key.

    Raises:
      ValueError: keys and values have different inputs.
    """
    if key_vec is not value_vec and not self.is_initializing():
      raise ValueError(
        'value_vec must be key_vec, got another array; keys and values have'
        ' one latent'
      )
    self._check_call(query_vec, key_vec, value_vec, atten_mask)
    query = jnp.concatenate(
      self._query_parts(query_vec, query_segment_pos), axis=-1
    )
    latent, rotated = self._latent_and_rotated_key(key_vec, key_segment_pos)
    self._write_cache(self._prefill_writer(), latent, rotated)
    heads = kernel_inputs.Heads(
      checkpoint_name(self._shard_heads(query), 'query_proj'),
      *self._keys_and_values(latent, rotated),
    )
    encoded, probs = self._attend_by_kernel(heads, atten_mask), None
    if encoded is None:
      inputs = attention_core.AttentionInputs(
        *heads, segments.additive(atten_mask)
      )
      encoded, probs = self._attend(inputs, query_segment_pos)
    split = self.activation_split_dims_mapping.bld
    return self._project_output(encoded, query_vec, split), probs

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
    if is_cross_attention:
      cache = self.get_decode_state(_CACHE)
    else:
      cache = self._write_cache(
        self._step_writer(time_step),
        *self._latent_and_rotated_key(query_vec, pos),
      )
    length = self.decoding_state_sequence_length()
    attention_core.check_mask(atten_mask, batch, self.num_heads, steps, length)
    encoded = self._attend_to_latents(
      self._query_parts(query_vec, pos), cache, atten_mask, time_step
    )
    outputs = self._project_output(
      encoded, query_vec, self._step_output_split()
    )
    return outputs[:, 0] if is_single else outputs

  # Projections.

  def _create_projections(self) -> None:
    query_dim, key_dim = map(self._input_dim, ('query', 'key'))
    nope, rope = self.qk_nope_head_dim, self.qk_rope_head_dim
    if self.q_lora_rank is not None:
      self._create_latent('query', query_dim, self.q_lora_rank)
      query_dim = self.q_lora_rank
    self._create_latent('key_value', key_dim, self.kv_lora_rank)
    self.create_child('key_rotary', self._down_projection(key_dim, rope))
    for name, input_dim, head_dim in (
      ('query', query_dim, nope),
      ('query_rotary', query_dim, rope),
      ('key', self.kv_lora_rank, nope),
      ('value', self.kv_lora_rank, self.v_head_dim),
    ):
      self.create_child(name, self._head_projection(input_dim, head_dim))
    post = self._output_projection().set(dim_per_head=self.v_head_dim)
    post = self._with_init(post, self.num_heads * self.v_head_dim)
    self.create_child('post', post)

  def _create_latent(self, name: str, input_dim: int, rank: int) -> None:
    down = self._down_projection(input_dim, rank)
    self.create_child(f'{name}_down', down)
    norm = self.latent_norm_tpl.clone().set(dim=rank)
    self.create_child(f'{name}_norm', norm)

  def _down_projection(self, input_dim: int, output_dim: int) -> LayerTpl:
    down = self.down_proj_tpl.clone().set(
      input_dim=input_dim, output_dim=output_dim, use_bias=self.use_bias
    )
    split = self.weight_split_dims_mapping.proj_headless
    down.weight_split_dims_mapping.wt = split
    return self._with_init(down, input_dim)

  def _head_projection(self, input_dim: int, head_dim: int) -> LayerTpl:
    proj = self._with_heads(self.proj_tpl).set(
      input_dim=input_dim, dim_per_head=head_dim, use_bias=False
    )
    return self._with_init(proj, input_dim)

  def _with_init(self, projection: LayerTpl, fan_in: int) -> LayerTpl:
    if self.internal_gshard_gaussian_init:
      init = base_layer.WeightInit.Gaussian(fan_in**-0.5)
      projection.params_init = init
    return projection

  def _create_position_children(self) -> None:
    self.create_child(
      'rotary_position_emb',
      self.rotary_position_emb_tpl.clone().set(
        embedding_dims=self.qk_rope_head_dim,
        cast_as_fprop_dtype=self.cast_rotary_position_emb,
      ),
    )

  def _head_dim(self) -> int:
    return self.qk_nope_head_dim + self.qk_rope_head_dim

  # From inputs to queries, keys and values.

  def _query_parts(
    self, query_vec: Float[Array, 'B T D'], pos: Positions
  ) -> tuple[Float[Array, 'B T N H'], Float[Array, 'B T N R']]:
    """Returns the queries without position, and the rotated ones."""
    if self.q_lora_rank is not None:
      query_vec = self.query_norm(self.query_down(query_vec))
    rotated = self.rotary_position_emb(self.query_rotary(query_vec), pos)
    return self.query(query_vec), rotated

  def _latent_and_rotated_key(
    self, key_vec: Float[Array, 'B S D'], pos: Positions
  ) -> tuple[Float[Array, 'B S C'], Float[Array, 'B S R']]:
    latent = self.key_value_norm(self.key_value_down(key_vec))
    return latent, self.rotary_position_emb(self.key_rotary(key_vec), pos)

  def _keys_and_values(
    self, latent: Float[Array, 'B S C'], rotated: Float[Array, 'B S R']
  ) -> tuple[Float[Array, 'B S N _'], Float[Array, 'B S N V']]:
    """Returns the keys, both parts, and the values of all heads."""
    key, value = self.key(latent), self.value(latent)
    shared = rotated[:, :, jnp.newaxis].astype(key.dtype)
    shared = jnp.broadcast_to(shared, (*key.shape[:3], rotated.shape[-1]))
    key = jnp.concatenate([key, shared], axis=-1)
    key, value = map(self._shard_heads, (key, value))
    return checkpoint_name(key, 'key_proj'), checkpoint_name(
      value, 'value_proj'
    )

  # Decoding.

  def _write_cache(
    self,
    writer: kv_cache.CacheWriter,
    latent: Float[Array, 'B S C'],
    rotated: Float[Array, 'B S R'],
  ) -> Float[Array, 'B _ _']:
    """Caches keys; returns those of all steps in decoding."""
    rotated = rotated.astype(latent.dtype)
    return writer.write(_CACHE, jnp.concatenate([latent, rotated], axis=-1))

  def _attend_to_latents(
    self,
    query: tuple[Float[Array, 'B L N H'], Float[Array, 'B L N R']],
    cache: Float[Array, '_ S _'],
    mask: attention_core.Mask,
    time_step: Int[Array, ''] | int,
  ) -> Float[Array, 'B L N V']:
    """Returns the attended values of steps.

    The latents are keys and values of one head, which all queries share.
    """
    content, rotated = query
    latent = cache[..., : self.kv_lora_rank]
    to_key, to_value = self.key.product_weight(), self.value.product_weight()
    if to_key is None or to_value is None:
      heads = self._keys_and_values(latent, cache[..., self.kv_lora_rank :])
      inputs = attention_core.AttentionInputs(
        jnp.concatenate(query, axis=-1), *heads, mask
      )
      return self._attend_rows(inputs, time_step)[0]
    content = jnp.einsum('BLNH,CNH->BLNC', content, to_key)
    inputs = attention_core.AttentionInputs(
      jnp.concatenate([content, rotated], axis=-1), cache, latent, mask
    )
    encoded, _ = self._attend_rows(inputs, time_step)
    return jnp.einsum('BLNC,CNV->BLNV', encoded, to_value)

  def _check_fields(self) -> None:
    self._check_implementation()
    self._check_extra_logit()
    for name in (
      *('num_heads', 'kv_lora_rank', 'qk_nope_head_dim', 'qk_rope_head_dim'),
      'v_head_dim',
    ):
      if (value := getattr(self, name)) <= 0:
        raise ValueError(f'{name} must be positive, got {value}; set it')
    for name, only in (
      ('dim_per_head', (None, self._head_dim())),
      ('use_rotary_position_emb', (True,)),
      ('consolidate_rope_key_state', (True,)),
      ('internal_enable_per_dim_scale', (False,)),
      ('combine_qkv', (False,)),
      ('use_keys_as_values', (False,)),
      ('value_ln_tpl', (None,)),
      ('dconv_qkv', (False,)),
      ('relative_bias_tpl', (None,)),
      ('ngrammer_tpl', (None,)),
      ('use_output_gate', (False,)),
      ('ln_tpl', (None,)),
    ):
      if (value := getattr(self, name)) not in only:
        raise ValueError(
          f'{name} must be {" or ".join(map(str, only))} in'
          f' {type(self).__name__}, got {value}; leave it out'
        )
