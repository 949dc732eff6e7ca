# SPDX-License-Identifier: Apache-2.0
"""Attention whose logits depend on the distance of query and key.

With r the projected sinusoids of a distance, and u and v learned per head, a
logit is (q + u) k + (q + v) r.

References: Transformer-XL, https://arxiv.org/abs/1901.02860, section 3.3
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer, pax_fiddle
from praxis.layers import embedding_softmax
from praxis.layers.attentions import dot_product, local, products


class DotProductAttentionXL(dot_product.DotProductAttention):
  """Self attention with the relative positions of Transformer-XL."""

  # Size of the sinusoids.
  rel_pos_emb_dim: int = 0

  _logits_use_offset: ClassVar[bool] = True

  def setup(self) -> None:
    super().setup()
    create_relative_positional_embedding(self)

  def _logits(
    self,
    query: products.Heads,
    key: products.SourceHeads,
    offset: products.Offset,
  ) -> Float[Array, 'B N T S']:
    rows, columns = query.shape[1], key.shape[1]
    by_content, query = _with_shifts(self, query, key)
    distances = offset + rows - 1 - jnp.arange(rows + columns - 1)
    by_distance = _distance_logits(self, query, distances)
    return by_content + _by_key(by_distance, columns)


class LocalSelfAttentionXL(local.LocalSelfAttention):
  """Local self attention with the relative positions of Transformer-XL."""

  # Size of the sinusoids.
  rel_pos_emb_dim: int = 0

  def setup(self) -> None:
    if self.simulated:
      raise ValueError(
        'simulated must be False for LocalSelfAttentionXL, got True; '
        'DotProductAttentionXL has the logits of all positions'
      )
    super().setup()
    create_relative_positional_embedding(self)

  def _logits(
    self,
    query: products.Heads,
    key: products.SourceHeads,
    offset: products.Offset,
  ) -> Float[Array, 'B N T S']:
    rows, columns = query.shape[1], key.shape[1]
    by_content, query = _with_shifts(self, query, key)
    # Distances outside of the window are hidden: only as many as it has
    # positions are computed, and 0 stands for the others.
    first, last = self.left_context - 1, -self.right_context
    distances = jnp.arange(first, last - 1, -1)
    by_distance = _distance_logits(self, query, distances)
    beyond = rows + columns
    padded = jnp.pad(by_distance, [(0, 0)] * 3 + [(beyond, beyond)])
    start = beyond + first - offset - rows + 1
    of_pairs = jax.lax.dynamic_slice_in_dim(padded, start, beyond - 1, axis=-1)
    return by_content + _by_key(of_pairs, columns)


def create_relative_positional_embedding(layer: base_layer.BaseLayer) -> None:
  """Creates the children `pos_emb` and `pos_proj` of attention.

  With biases it has `u` and `v`, too, which shift the query by head.

  Args:
    layer: has `rel_pos_emb_dim` and what projects to heads.
  """
  if layer.rel_pos_emb_dim <= 0:
    raise ValueError(
      f'rel_pos_emb_dim must be positive, got {layer.rel_pos_emb_dim}; set it '
      'to the size of the sinusoids'
    )
  position = pax_fiddle.Config(
    embedding_softmax.PositionalEmbedding, embedding_dims=layer.rel_pos_emb_dim
  )
  layer.create_child('pos_emb', position)
  size = layer.dim_per_head
  if size is None:
    size = layer.hidden_dim // layer.num_heads
  proj = layer.proj_tpl.clone().set(
    input_dim=layer.rel_pos_emb_dim,
    num_heads=layer.num_heads,
    dim_per_head=size,
    use_bias=False,
  )
  proj.weight_split_dims_mapping.wt = layer.weight_split_dims_mapping.proj
  layer.create_child('pos_proj', proj)
  if not layer.use_bias:
    return
  for name in ('u', 'v'):
    shift = base_layer.WeightHParams(
      shape=[layer.num_heads, size],
      init=base_layer.WeightInit.Constant(0.0),
      mesh_shape=layer.mesh_shape,
    )
    layer.create_variable(name, shift)


def _with_shifts(
  layer: dot_product.DotProductAttention,
  query: products.Heads,
  key: products.SourceHeads,
) -> tuple[Float[Array, 'B N T S'], products.Heads]:
  """Returns the logits of the content, and the query that meets distances."""
  equation = 'BTNH,BSNH->BNTS'
  if not layer.use_bias:
    return layer.qk_einsum(equation, query, key), query
  by_content = layer.qk_einsum(equation, query + layer.theta.u, key)
  return by_content, query + layer.theta.v


def _distance_logits(
  layer: dot_product.DotProductAttention,
  query: products.Heads,
  distances: Int[Array, 'P'],
) -> Float[Array, 'B N T P']:
  """Returns the product of each query with each distance, query minus key."""
  sinusoids = layer.pos_proj(layer.pos_emb(position=distances[jnp.newaxis]))
  return layer.qk_einsum('BTNH,PNH->BNTP', query, sinusoids[0])


def _by_key(
  x: Float[Array, 'B N T P'], num_keys: int
) -> Float[Array, 'B N T S']:
  """Returns [t, s] of x[t, T - 1 - t + s], where P = T + S - 1.

  Read as rows that are one shorter, each starts one entry further left than
  the row before.
  """
  *batch, rows, distances = x.shape
  padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)])
  flat = padded.reshape(*batch, -1)[..., rows - 1 :]
  flat = flat[..., : rows * distances]
  return flat.reshape(*batch, rows, distances)[..., :num_keys]
