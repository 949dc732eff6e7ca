# SPDX-License-Identifier: Apache-2.0
"""Multi-query attention: few heads of keys and values, shared by the queries'.

Shapes: B batch, T queries, S keys and values, D model, N heads of queries, K
heads of keys and values with N = K · G, H head dimension.

References: MQA, arXiv:1911.02150; GQA, arXiv:2305.13245.
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle, pytypes
from praxis.alias_names import module_getattr
from praxis.layers import attentions, base_ops
from praxis.layers.attentions import (
  attention_core,
  dot_product,
  lazy_prefix,
  masks,
  segments,
)

__getattr__ = module_getattr(__name__)

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
SplitDimsMapping = pytypes.SplitDimsMapping
template_field = pax_fiddle.template_field


class OneHeadedAttentionProjection(base_layer.BaseLayer):
  """Projects the model dimension to one head."""

  # The model dimension.
  input_dim: int = 0
  # The head dimension.
  output_dim: int = 0
  use_bias: bool = True
  # Computes the product.
  einsum_tpl: LayerTpl = template_field(base_ops.EinsumOp)

  def setup(self) -> None:
    split = self.weight_split_dims_mapping.wt
    if split is not None and len(split) != 2:
      raise ValueError(
        'weight_split_dims_mapping.wt must have 2 entries (model dim, dim per '
        f'head), got {list(split)}; shard both dimensions'
      )
    weight = base_layer.WeightHParams(
      shape=[self.input_dim, self.output_dim],
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=split,
    )
    self.create_variable('w', weight)
    if self.use_bias:
      bias = base_layer.WeightHParams(
        shape=[self.output_dim],
        init=base_layer.WeightInit.Constant(0.0),
        mesh_shape=self.mesh_shape,
        tensor_split_dims_mapping=split and [split[1]],
      )
      self.create_variable('b', bias)
    self.create_child('einsum', self.einsum_tpl.clone())

  def __call__(self, inputs: Float[Array, '*B D']) -> Float[Array, '*B H']:
    """Returns the projected inputs."""
    if inputs.shape[-1] != self.input_dim:
      raise ValueError(
        f'the last dimension of the inputs must be input_dim={self.input_dim}, '
        f'got shape {list(inputs.shape)}; set input_dim'
      )
    outputs = self.einsum('...D,DH->...H', inputs, self.theta.w)
    return outputs + self.theta.b if self.use_bias else outputs

  def extend_step(
    self,
    inputs: Float[Array, '*B D'],
    *,
    time_step: pytypes.JTensor | None = None,
  ) -> Float[Array, '*B H']:
    """Returns the same as `__call__`; the time step is ignored."""
    del time_step
    return self(inputs)


class MultiQueryDotProductAttention(attentions.DotProductAttention):
  """Dot-product attention with fewer heads of keys and values than of queries.

  A single head of keys has no head axis: its projection is [D, H], its cache
  [B, S, H]. Several heads are projected to [B, S, K, H]; consecutive groups of
  G heads of queries share one of them.

  References: One Write-Head is All You Need, https://arxiv.org/abs/1911.02150,
  and GQA, https://arxiv.org/abs/2305.13245
  """

  # Number of heads of keys and values.
  num_kv_heads: int = 1
  # The projection to keys and to values if they have one head.
  headless_proj_tpl: LayerTpl = template_field(OneHeadedAttentionProjection)
  # Queries are scaled by 1/√H by default, not by a learned scale.
  internal_enable_per_dim_scale: bool = False
  # Number of chunks of queries that are computed sequentially, with the logits
  # of one chunk in memory. With several, no probabilities are returned.
  chunked_attn_num_seq_split: int = 1
  # Number of positions before and after its own that a query sees; all when
  # None.
  local_window_size: tuple[int, int] | None = None
  # Number of positions of a chunk of a segment: a query sees the keys of its
  # own chunk, up to its own position; of all chunks when None (Llama 4).
  attention_chunk_size: int | None = None
  # Scales queries by their positions, after their rotation and norm; None for
  # no scale.
  query_temperature_tpl: LayerTpl | None = template_field(None)

  # Chunks of queries compute the same.
  has_kernel: ClassVar[bool] = True

  class WeightSharding(attentions.DotProductAttention.WeightSharding):
    # Sharding of projections to one head [D, H].
    proj_headless: SplitDimsMapping = None

  class ActivationSharding(attentions.DotProductAttention.ActivationSharding):
    # Shardings of keys and values of one head, and of the output of a decode
    # step.
    blh: SplitDimsMapping = None
    bd: SplitDimsMapping = None

  def _restrict_mask(
    self,
    mask: Float[Array, '#B #N #T S'] | segments.SegmentMask,
    pos: dot_product.Positions,
    first_query: attention_core.Index,
    num_keys: int | None,
  ) -> Float[Array, '#B #N #T S'] | segments.SegmentMask:
    """Returns a mask that hides other chunks, too.

    Args:
      mask: of all chunks.
      pos: of each query in its segment.
      first_query: index of the first one.
      num_keys: those of the sequence of the queries; None for another one.

    Raises:
      ValueError: chunks of one sequence have no keys of another one.
    """
    size = self.attention_chunk_size
    if size is None:
      return mask
    if num_keys is None:
      raise ValueError(
        'attention_chunk_size must be None but for self-attention, got'
        f' {size} with keys of another sequence; set it to None'
      )
    if num_keys <= size:
      # One chunk, which the window makes causal.
      return mask
    pos = masks.step_positions(pos, first_query, num_keys)
    if isinstance(mask, segments.SegmentMask):
      return mask.in_chunks(pos, size)
    in_chunks = masks.chunk_step_mask(first_query, num_keys, pos, size)
    return jnp.minimum(mask, in_chunks)

  def _check_fields(self) -> None:
    super()._check_fields()
    if self.num_kv_heads <= 0 or self.num_heads % self.num_kv_heads:
      raise ValueError(
        f'num_kv_heads must divide num_heads={self.num_heads}, got '
        f'{self.num_kv_heads}; each group of heads shares one of keys'
      )
    for name in ('dconv_qkv', 'combine_qkv'):
      if getattr(self, name):
        raise ValueError(
          f'{name} must be False, got True; queries have more heads than keys '
          'here, use DotProductAttention'
        )
    if self.chunked_attn_num_seq_split < 1:
      raise ValueError(
        'chunked_attn_num_seq_split must be at least 1, got '
        f'{self.chunked_attn_num_seq_split}; 1 computes all queries at once'
      )
    window = self.local_window_size
    if window is not None and (len(window) != 2 or min(window) < 0):
      raise ValueError(
        'local_window_size must be two numbers, of positions before and after '
        f'the current one, got {window}; 0 is none of them'
      )
    size = self.attention_chunk_size
    if size is not None and (size < 1 or window is not None):
      raise ValueError(
        'attention_chunk_size must be at least 1, and without '
        f'local_window_size, got {size} with {window}; None is one chunk'
      )

  def _input_projection(self, name: str) -> LayerTpl:
    proj = super()._input_projection(name)
    if name == 'query':
      return proj
    if self.num_kv_heads > 1:
      return proj.set(num_heads=self.num_kv_heads)
    headless = self.headless_proj_tpl.clone().set(
      input_dim=self._input_dim(name),
      output_dim=self._head_dim(),
      use_bias=self.use_bias,
    )
    if self.internal_gshard_gaussian_init:
      headless.params_init = proj.params_init
    split = self.weight_split_dims_mapping.proj_headless
    headless.weight_split_dims_mapping.wt = split
    return headless

  def _num_key_heads(self) -> int:
    return self.num_kv_heads

  def _create_head_children(self) -> None:
    super()._create_head_children()
    if self.query_temperature_tpl is not None:
      self.create_child('query_temperature', self.query_temperature_tpl.clone())

  def _prepare_query(
    self,
    query: attention_core.QueryHeads,
    pos: dot_product.Positions,
    writer: dot_product.CacheWriter,
  ) -> attention_core.QueryHeads:
    query = super()._prepare_query(query, pos, writer)
    if self.query_temperature_tpl is None:
      return query
    return self.query_temperature(query, pos)

  def _window(self) -> masks.ContextWindow | None:
    if self.attention_chunk_size is not None:
      # No chunk has more keys before a query; kernels and steps skip others.
      return masks.ContextWindow(self.attention_chunk_size, 0)
    if self.local_window_size is None:
      return None
    before, after = self.local_window_size
    return masks.ContextWindow(before + 1, after)

  def _attend(
    self,
    inputs: attention_core.AttentionInputs,
    query_pos: dot_product.Positions,
  ) -> tuple[attention_core.QueryHeads, Float[Array, 'B N T S'] | None]:
    chunks = self.chunked_attn_num_seq_split
    if chunks == 1:
      return super()._attend(inputs, query_pos)
    length = inputs.query.shape[1]
    if length % chunks:
      raise ValueError(
        f'chunked_attn_num_seq_split must divide the number of queries {length}'
        f', got {chunks}; set it to 1 for sequences of any length'
      )
    size = length // chunks
    encoded = [
      self._attend_rows(inputs.slice_queries((first, size)), first)[0]
      for first in range(0, length, size)
    ]
    return jnp.concatenate(encoded, axis=1), None

  def _step_output_split(self) -> SplitDimsMapping:
    split = self.activation_split_dims_mapping.bd
    return (
      super()._step_output_split()
      if split is None
      else [split[0], None, split[1]]
    )

  def _shard_heads(self, x: Float[Array, '...']) -> Float[Array, '...']:
    return self._shard_blnh(x) if x.ndim == 4 else self._shard_blh(x)

  def _shard_blh(self, x: Float[Array, 'B S H']) -> Float[Array, 'B S H']:
    splits = self.activation_split_dims_mapping
    split = splits.blh
    if split is None and splits.blnh is not None:
      split = [*splits.blnh[:2], splits.blnh[3]]
    return base_layer.maybe_shard(x, split, self.mesh_axis_names)


class MultiQueryDotProductAttentionLPB(
  MultiQueryDotProductAttention, lazy_prefix.DotProductAttentionWithLPB
):
  """Multi-query attention with lazy prefix broadcast.

  It computes the same as MultiQueryDotProductAttention and reads the cache of a
  prompt once for all of its samples; see attentions/lazy_prefix.py.
  """
