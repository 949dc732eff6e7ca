# SPDX-License-Identifier: Apache-2.0
"""Attention whose logits depend on the distance of query and key."""

from __future__ import annotations

from typing import Any, NoReturn

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle
from praxis.layers import embedding_softmax
from praxis.layers.attentions import dot_product


class DotProductAttentionXL(dot_product.DotProductAttention):
  """Self attention with Transformer-XL's relative positions; no decoding.

  With r the projected sinusoids of a distance, and u and v learned per head, a
  logit is (q + u) k + (q + v) r.

  References: https://arxiv.org/abs/1901.02860, section 3.3.
  """

  # Size of the sinusoids.
  rel_pos_emb_dim: int = 0

  def setup(self) -> None:
    if self.rel_pos_emb_dim <= 0:
      raise ValueError(
        f'rel_pos_emb_dim must be positive, got {self.rel_pos_emb_dim}'
      )
    super().setup()
    position = pax_fiddle.Config(
      embedding_softmax.PositionalEmbedding, embedding_dims=self.rel_pos_emb_dim
    )
    self.create_child('pos_emb', position)
    proj = self._with_heads(self.proj_tpl)
    self.create_child(
      'pos_proj', proj.set(input_dim=self.rel_pos_emb_dim, use_bias=False)
    )
    for name in ('u', 'v'):
      shift = base_layer.WeightHParams(
        shape=[self.num_heads, self._head_size()],
        init=base_layer.WeightInit.Constant(0.0),
        mesh_shape=self.mesh_shape,
      )
      self.create_variable(name, shift)

  def extend_step(self, *args: Any, **kwargs: Any) -> NoReturn:
    """Raises NotImplementedError: distances are those of a whole sequence."""
    raise NotImplementedError(
      'DotProductAttentionXL does not decode step by step; use '
      'DotProductAttention with use_rotary_position_emb=True'
    )

  def _logits(
    self, query: Float[Array, 'B T N H'], key: Float[Array, 'B S N H']
  ) -> Float[Array, 'B N T S']:
    length = query.shape[1]
    if key.shape[1] != length:
      raise ValueError(
        f'DotProductAttentionXL needs as many keys as queries ({length}), got '
        f'{key.shape[1]}; it is for self attention'
      )
    by_content = super()._logits(query + self.theta.u, key)
    distances = jnp.arange(length - 1, -length, -1)[jnp.newaxis]
    sinusoids = self.pos_proj(self.pos_emb(position=distances))[0]
    by_distance = self.qk_einsum(
      'BTNH,PNH->BNTP', query + self.theta.v, sinusoids
    )
    return by_content + _by_key(by_distance)


def _by_key(x: Float[Array, 'B N T P']) -> Float[Array, 'B N T T']:
  """Returns [t, s] of x[t, T - 1 - t + s], where P = 2 T - 1.

  Read as rows that are one shorter, each starts one entry further left than
  the row before.
  """
  *batch, length, _ = x.shape
  padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)])
  flat = padded.reshape(*batch, -1)[..., length - 1 : -1]
  return flat.reshape(*batch, length, 2 * length - 1)[..., :length]
