# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention, and its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from pax.huggingface import weight_layouts
from pax.huggingface.layers.mixers import LayerTpl, Mixer
from pax.huggingface.layers.rotary_embeddings import rotary_embedding
from pax.huggingface.weight_layouts import WeightLayout
from praxis import pax_fiddle
from praxis.layers import multi_head_latent_attention


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentAttention(Mixer):
  """The settings of an attention."""

  num_heads: int
  # None for queries without a latent.
  query_rank: int | None
  key_value_rank: int
  # Dimensions of the two parts of queries and keys, and of values.
  nope_dim: int
  rope_dim: int
  value_dim: int
  # Whether the files have the rotated channels in pairs; the layer has the
  # first of all pairs, then the second.
  has_interleaved_pairs: bool
  # Of the projections to latents.
  has_bias: bool
  # `rope_parameters` of config.json.
  rope: Mapping[str, Any]
  # The factor of queries.
  query_scale: float

  def __post_init__(self) -> None:
    odd = [n for n in (self.nope_dim, self.key_value_rank) if n % 2]
    if self.rope_dim % 2 or (odd and self.has_interleaved_pairs):
      raise ValueError(
        'qk_nope_head_dim, qk_rope_head_dim and kv_lora_rank in config.json'
        f' must be even, got {self.nope_dim}, {self.rope_dim} and'
        f' {self.key_value_rank}; rotated channels are pairs'
      )
    # Raises errors before weights are read.
    rotary_embedding(self.rope)

  def layer(self, norm: LayerTpl) -> LayerTpl:
    """Returns the Config of the layer.

    Args:
      norm: Of the latents.
    """
    return pax_fiddle.Config(
      multi_head_latent_attention.MultiHeadLatentAttention,
      num_heads=self.num_heads,
      q_lora_rank=self.query_rank,
      kv_lora_rank=self.key_value_rank,
      qk_nope_head_dim=self.nope_dim,
      qk_rope_head_dim=self.rope_dim,
      v_head_dim=self.value_dim,
      use_bias=self.has_bias,
      latent_norm_tpl=norm,
      rotary_position_emb_tpl=rotary_embedding(self.rope),
      query_scale=self.query_scale,
    )

  def weights(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of the weights of a layer.

    Args:
      source: Name of the attention in the files.
      target: Path of the layer.
      model_dims: Dimension of the model.
    """
    query, query_dims = f'{source}.q_proj', model_dims
    if self.query_rank is not None:
      down, query_dims = f'{source}.q_a_proj', self.query_rank
      yield from self._down(down, f'{target}/query_down', model_dims)
      yield weight_layouts.same(
        f'{source}.q_a_layernorm.weight',
        f'{target}/query_norm/scale',
        query_dims,
      )
      query = f'{source}.q_b_proj'
    for tensor, inputs, parts in (
      (
        query,
        query_dims,
        (('query', self.nope_dim), ('query_rotary', self.rope_dim)),
      ),
      (
        f'{source}.kv_b_proj',
        self.key_value_rank,
        (('key', self.nope_dim), ('value', self.value_dim)),
      ),
    ):
      yield from self._heads(f'{tensor}.weight', target, inputs, parts)
    yield from self._key_value_down(source, target, model_dims)
    yield weight_layouts.same(
      f'{source}.kv_a_layernorm.weight',
      f'{target}/key_value_norm/scale',
      self.key_value_rank,
    )
    yield weight_layouts.from_heads(
      f'{source}.o_proj.weight',
      f'{target}/post/w',
      model_dims,
      (self.num_heads, self.value_dim),
    )
    if self.has_bias:
      yield weight_layouts.same(
        f'{source}.o_proj.bias', f'{target}/post/b', model_dims
      )

  def _down(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of the projection to the latent of queries."""
    rank = self.query_rank or 0
    yield weight_layouts.transposed(
      f'{source}.weight', f'{target}/w', rank, model_dims
    )
    if self.has_bias:
      yield weight_layouts.same(f'{source}.bias', f'{target}/b', rank)

  def _heads(
    self,
    tensor: str,
    target: str,
    inputs: int,
    parts: tuple[tuple[str, int], tuple[str, int]],
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of two projections to heads in one tensor."""
    num_heads, total = self.num_heads, sum(size for _, size in parts)
    shape, first = (num_heads * total, inputs), 0
    for name, size in parts:
      variable = f'{target}/{name}/w'
      if name == 'query_rotary' and self.has_interleaved_pairs:
        yield weight_layouts.split(
          tensor,
          variable,
          shape,
          (num_heads, total // 2, 2, inputs),
          (3, 0, 2, 1),
        ).take(
          slice(None),
          slice(first // 2, None),
          merged_shape=(inputs, num_heads, size),
        )
      else:
        yield weight_layouts.split(
          tensor, variable, shape, (num_heads, total, inputs), (2, 0, 1)
        ).take(slice(None), slice(first, first + size))
      first += size

  def _key_value_down(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of the latent's and the rotated key's projection."""
    rank, rope = self.key_value_rank, self.rope_dim
    names: list[tuple[str, str, tuple[int, ...]]] = [
      ('weight', 'w', (model_dims,))
    ]
    if self.has_bias:
      names.append(('bias', 'b', ()))
    for kind, variable, inputs in names:
      tensor = f'{source}.kv_a_proj_with_mqa.{kind}'
      shape = (rank + rope, *inputs)
      # Inputs first.
      yield weight_layouts.split(
        tensor,
        f'{target}/key_value_down/{variable}',
        shape,
        shape,
        tuple(reversed(range(len(shape)))),
      ).take(slice(rank))
      rotated = f'{target}/key_rotary/{variable}'
      if self.has_interleaved_pairs:
        pairs = ((rank + rope) // 2, 2, *inputs)
        yield weight_layouts.split(
          tensor, rotated, shape, pairs, tuple(reversed(range(len(pairs))))
        ).take(slice(rank // 2, None), merged_shape=(*inputs, rope))
      else:
        yield weight_layouts.split(
          tensor, rotated, shape, shape, tuple(reversed(range(len(shape))))
        ).take(slice(rank, None))
