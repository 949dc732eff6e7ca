# SPDX-License-Identifier: Apache-2.0
"""Attention with rotary positions, and its weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pax.huggingface import weight_layouts
from pax.huggingface.layers.mixers import LayerTpl, Mixer
from pax.huggingface.layers.query_temperatures import QueryTemperature
from pax.huggingface.layers.rotary_embeddings import rotary_embedding
from pax.huggingface.weight_layouts import WeightLayout
from praxis import base_layer, pax_fiddle
from praxis.layers import multi_query_attention, normalizations


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryAttention(Mixer):
  """The settings of an attention."""

  layer_class: ClassVar[type[base_layer.BaseLayer]] = (
    multi_query_attention.MultiQueryDotProductAttention
  )

  num_heads: int
  num_kv_heads: int
  dim_per_head: int
  # `rope_parameters` of config.json: rope_theta, rope_type and its settings;
  # None if neither queries nor keys are rotated.
  rope: Mapping[str, Any] | None
  # Number of channels of a head, from the first on, that are rotated; None for
  # all.
  rotary_dims: int | None = None
  # Whether two consecutive channels are a pair, instead of one in each half.
  has_interleaved_pairs: bool = False
  # Biases of queries, keys and values, and of the output.
  has_qkv_bias: bool = False
  has_output_bias: bool = False
  # Whether queries and keys are normalized before their rotation.
  has_head_norms: bool = False
  # Whether they are instead with all heads together.
  has_projection_norms: bool = False
  # Whether they are divided by their root mean square after their rotation.
  has_rotated_norms: bool = False
  # Whether values are divided by the root mean square of their head.
  has_value_norms: bool = False
  # Whether values are the projected keys, before their norm and rotation.
  has_keys_as_values: bool = False
  # Factors of queries that grow with the position; None for none.
  query_temperature: QueryTemperature | None = None
  # The factor of queries; None for 1/√(dim_per_head).
  query_scale: float | None = None
  # Soft cap of the logits; None for none.
  logit_cap: float | None = None
  # Whether each head has a logit that attends to no value.
  has_sinks: bool = False
  # Whether attended values are multiplied by the sigmoid of a projection, which
  # is in the tensor of queries.
  has_output_gate: bool = False
  # Number of positions of the chunks that a query sees keys of; None for one
  # chunk.
  chunk_size: int | None = None
  # Whether one tensor has queries, keys and values, without biases.
  has_fused_qkv: bool = False

  def __post_init__(self) -> None:
    if self.rope is not None:
      # Raises errors before weights are read.
      rotary_embedding(self.rope)

  def layer(self, norm: LayerTpl) -> LayerTpl:
    """Returns the Config of the layer.

    Args:
      norm: Of queries and keys, if they have one before their rotation.
    """
    attention = pax_fiddle.Config(
      self.layer_class,
      num_heads=self.num_heads,
      num_kv_heads=self.num_kv_heads,
      dim_per_head=self.dim_per_head,
      use_bias=self.has_qkv_bias,
      use_output_bias=self.has_output_bias,
      scale_query_by_dim_per_head=True,
      query_scale=self.query_scale,
      atten_logit_cap=self.logit_cap,
      use_attention_sinks=self.has_sinks,
      use_output_gate=self.has_output_gate,
      use_keys_as_values=self.has_keys_as_values,
      attention_chunk_size=self.chunk_size,
    )
    if self.query_temperature is not None:
      attention.query_temperature_tpl = self.query_temperature.layer()
    if self.has_head_norms or self.has_projection_norms:
      attention.set(
        ln_tpl=norm,
        ln_before_rotary=True,
        ln_all_heads=self.has_projection_norms,
      )
    if self.has_value_norms:
      attention.value_ln_tpl = _norm_without_scale(norm)
    if self.rope is not None:
      self._set_rotation(attention, self.rope, norm)
    return attention

  def _set_rotation(
    self, attention: LayerTpl, rope: Mapping[str, Any], norm: LayerTpl
  ) -> None:
    """Rotates the queries and keys of an attention's Config."""
    attention.set(
      use_rotary_position_emb=True,
      # Rotated keys suffice for decoding.
      consolidate_rope_key_state=True,
      rotary_position_emb_tpl=rotary_embedding(rope).set(
        rotary_dims=self.rotary_dims,
        interleaved_pairs=self.has_interleaved_pairs,
      ),
    )
    if self.has_rotated_norms:
      attention.ln_tpl = _norm_without_scale(norm)

  def weights(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of the weights of a layer; see Mixer."""
    head = self.dim_per_head
    if self.has_fused_qkv:
      yield from self._fused_projection_weights(source, target, model_dims)
    else:
      yield from self._projection_weights(source, target, model_dims)
    yield weight_layouts.from_heads(
      f'{source}.o_proj.weight',
      f'{target}/post/w',
      model_dims,
      (self.num_heads, head),
    )
    if self.has_output_bias:
      yield weight_layouts.same(
        f'{source}.o_proj.bias', f'{target}/post/b', model_dims
      )
    if self.has_sinks:
      yield weight_layouts.same(
        f'{source}.sinks', f'{target}/sinks', self.num_heads
      )
    if self.has_head_norms or self.has_projection_norms:
      for name, num_heads in self._normed_heads():
        yield weight_layouts.same(
          f'{source}.{name}_norm.weight',
          f'{target}/layer_norm_{name}/scale',
          head * (num_heads if self.has_projection_norms else 1),
        )

  def _projection_weights(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of queries, keys and values."""
    projections = self._key_projections()
    if self.has_output_gate:
      yield from self._gated_query_weights(source, target, model_dims)
    else:
      queries = (self.num_heads, self.dim_per_head)
      projections.insert(0, ('q_proj', 'query', queries))
    for projection, name, heads in projections:
      axes = (len(heads), *range(len(heads)))
      shape = (math.prod(heads), model_dims)
      yield weight_layouts.split(
        f'{source}.{projection}.weight',
        f'{target}/{name}/w',
        shape,
        (*heads, model_dims),
        axes,
      )
      if self.has_qkv_bias:
        yield weight_layouts.split(
          f'{source}.{projection}.bias', f'{target}/{name}/b', shape[:1], heads
        )

  def _key_projections(self) -> list[tuple[str, str, tuple[int, ...]]]:
    """Returns the tensors, variables and heads of keys and values."""
    projections = [('k_proj', 'key', self._key_heads())]
    if not self.has_keys_as_values:
      projections.append(('v_proj', 'value', self._key_heads()))
    return projections

  def _normed_heads(self) -> list[tuple[str, int]]:
    """Returns the letters and numbers of heads that have norms."""
    return [('q', self.num_heads), ('k', self.num_kv_heads)]

  def _gated_query_weights(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of queries and gates, which alternate by head."""
    heads, dim = self.num_heads, self.dim_per_head
    for first, name in ((0, 'query'), (dim, 'output_gate')):
      part = slice(None), slice(first, first + dim)
      yield weight_layouts.split(
        f'{source}.q_proj.weight',
        f'{target}/{name}/w',
        (heads * 2 * dim, model_dims),
        (heads, 2 * dim, model_dims),
        (2, 0, 1),
      ).take(*part)
      if self.has_qkv_bias:
        yield weight_layouts.split(
          f'{source}.q_proj.bias',
          f'{target}/{name}/b',
          (heads * 2 * dim,),
          (heads, 2 * dim),
        ).take(*part)

  def _fused_projection_weights(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the same, which are one tensor in this order."""
    head, first = self.dim_per_head, 0
    total = self.num_heads + 2 * self.num_kv_heads
    for name, heads in (
      ('query', (self.num_heads, head)),
      ('key', self._key_heads()),
      ('value', self._key_heads()),
    ):
      end = first + math.prod(heads) // head
      yield weight_layouts.split(
        f'{source}.qkv_proj.weight',
        f'{target}/{name}/w',
        (total * head, model_dims),
        (total, head, model_dims),
        (2, 0, 1),
      ).take(slice(first, end), merged_shape=(model_dims, *heads))
      first = end

  def _key_heads(self) -> tuple[int, ...]:
    """Returns the shape of keys; a single head of them has no axis."""
    heads = self.num_kv_heads, self.dim_per_head
    return heads[1:] if self.num_kv_heads == 1 else heads


def _norm_without_scale(norm: LayerTpl) -> LayerTpl:
  return pax_fiddle.Config(normalizations.RmsNormNoScale, epsilon=norm.epsilon)
