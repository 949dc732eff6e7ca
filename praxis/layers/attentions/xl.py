# SPDX-License-Identifier: Apache-2.0
"""Self-attention with the relative positions of Transformer-XL.

With r the projected sinusoids of a distance, and u and v learned per head, a
logit is (q + u) k + (q + v) r: the content term and the position term.

References: Transformer-XL, https://arxiv.org/abs/1901.02860, section 3.3
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer, pax_fiddle
from praxis.layers import embedding_softmax
from praxis.layers.attentions import attention_core, dot_product, local


class DotProductAttentionXL(dot_product.DotProductAttention):
  """Self-attention with the relative positions of Transformer-XL."""

  # Dimension of the sinusoids.
  rel_pos_emb_dim: int = 0

  _has_relative_logits: ClassVar[bool] = True

  def setup(self) -> None:
    super().setup()
    create_relative_positional_embedding(self)

  def _logits(
    self,
    query: attention_core.QueryHeads,
    key: attention_core.KeyHeads,
    first_query: attention_core.Index,
  ) -> Float[Array, 'B N T S']:
    rows, columns = query.shape[1], key.shape[1]
    distances = first_query + rows - 1 - jnp.arange(rows + columns - 1)
    position_logits = _position_logits(self, query, distances)
    return _content_logits(self, query, key) + _relative_shift(
      position_logits, columns
    )


class LocalSelfAttentionXL(local.LocalSelfAttention):
  """Local self-attention with the relative positions of Transformer-XL."""

  # Dimension of the sinusoids.
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
    query: attention_core.QueryHeads,
    key: attention_core.KeyHeads,
    first_query: attention_core.Index,
  ) -> Float[Array, 'B N T S']:
    rows, columns = query.shape[1], key.shape[1]
    # Only distances inside the window are computed; the others are masked and
    # padded with 0.
    left_context, right_context = self._contexts()
    first, last = left_context - 1, -right_context
    distances = jnp.arange(first, last - 1, -1)
    window_logits = _position_logits(self, query, distances)
    padding = rows + columns
    padded = jnp.pad(window_logits, [(0, 0)] * 3 + [(padding, padding)])
    start = padding + first - first_query - rows + 1
    position_logits = jax.lax.dynamic_slice_in_dim(
      padded, start, padding - 1, axis=-1
    )
    return _content_logits(self, query, key) + _relative_shift(
      position_logits, columns
    )


def create_relative_positional_embedding(layer: base_layer.BaseLayer) -> None:
  """Creates `pos_emb` and `pos_proj`, and the query biases `u` and `v`.

  Args:
    layer: an attention layer with the field `rel_pos_emb_dim`; without
      `use_bias` it gets no `u` and `v`.

  Raises:
    ValueError: rel_pos_emb_dim is not positive.
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
  head_dim = layer.dim_per_head
  if head_dim is None:
    head_dim = layer.hidden_dim // layer.num_heads
  proj = layer.proj_tpl.clone().set(
    input_dim=layer.rel_pos_emb_dim,
    num_heads=layer.num_heads,
    dim_per_head=head_dim,
    use_bias=False,
  )
  proj.weight_split_dims_mapping.wt = layer.weight_split_dims_mapping.proj
  layer.create_child('pos_proj', proj)
  if not layer.use_bias:
    return
  for name in ('u', 'v'):
    query_bias = base_layer.WeightHParams(
      shape=[layer.num_heads, head_dim],
      init=base_layer.WeightInit.Constant(0.0),
      mesh_shape=layer.mesh_shape,
    )
    layer.create_variable(name, query_bias)


def _content_logits(
  layer: dot_product.DotProductAttention,
  query: attention_core.QueryHeads,
  key: attention_core.KeyHeads,
) -> Float[Array, 'B N T S']:
  """Returns (q + u) k."""
  if layer.use_bias:
    query = query + layer.theta.u
  return layer.qk_einsum('BTNH,BSNH->BNTS', query, key)


def _position_logits(
  layer: dot_product.DotProductAttention,
  query: attention_core.QueryHeads,
  distances: Int[Array, ' P'],
) -> Float[Array, 'B N T P']:
  """Returns (q + v) r for each distance, query minus key index."""
  if layer.use_bias:
    query = query + layer.theta.v
  sinusoids = layer.pos_proj(layer.pos_emb(position=distances[jnp.newaxis]))
  return layer.qk_einsum('BTNH,PNH->BNTP', query, sinusoids[0])


def _relative_shift(
  x: Float[Array, 'B N T P'], num_keys: int
) -> Float[Array, 'B N T S']:
  """Returns y[t, s] = x[t, T - 1 - t + s], where P = T + S - 1.

  The rows are padded by one entry, flattened and cut into rows of the unpadded
  length, so that each row is shifted by one more entry than the row before
  (Transformer-XL, appendix B).
  """
  *batch, rows, distances = x.shape
  padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)])
  flat = padded.reshape(*batch, -1)[..., rows - 1 :]
  flat = flat[..., : rows * distances]
  return flat.reshape(*batch, rows, distances)[..., :num_keys]
