# SPDX-License-Identifier: Apache-2.0
"""Boolean masks, and what grouped-query attention does with heads.

A mask is True where a position is hidden. Its axes are batch, head, query
position, key position; an axis of length 1 is broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num, Shaped

from praxis import pytypes
from praxis.layers.attentions import masks
from praxis.layers.embedding_softmax import rotary


def causal_mask(seqlen: int) -> Bool[Array, '1 1 T T']:
  """Returns the mask that hides every later position."""
  index = jnp.arange(seqlen)
  return (index[:, jnp.newaxis] < index)[jnp.newaxis, jnp.newaxis]


def segment_mask(
  segment_ids: Num[Array, 'B T'],
  src_segment_ids: Num[Array, 'B S'] | None = None,
) -> Bool[Array, 'B 1 T S']:
  """Returns the mask that hides the positions of other segments."""
  if src_segment_ids is None:
    src_segment_ids = segment_ids
  other = segment_ids[:, :, jnp.newaxis] != src_segment_ids[:, jnp.newaxis]
  return other[:, jnp.newaxis]


def attention_mask(segment_ids: Num[Array, 'B T']) -> Bool[Array, 'B 1 T T']:
  """Returns the mask that hides later positions and other segments."""
  return causal_mask(segment_ids.shape[1]) | segment_mask(segment_ids)


def padding_mask(paddings: Num[Array, 'B T']) -> Num[Array, 'B 1 1 T']:
  """Returns the mask that hides padded positions (padding 1) from everyone."""
  return paddings[:, jnp.newaxis, jnp.newaxis]


def apply_mask(
  logits: Float[Array, '*B S'], atten_mask: Shaped[Array, '*#B #S']
) -> Float[Array, '*B S']:
  """Returns the logits, large negative where the mask is not zero."""
  return jnp.where(atten_mask != 0, masks.large_negative(logits.dtype), logits)


def apply_rope(
  inputs: Float[Array, 'B S *K H'],
  min_timescale: int,
  max_timescale: int,
  position: Int[Array, '#B S'] | None = None,
) -> Float[Array, 'B S *K H']:
  """Returns the inputs rotated by their positions, by default their index.

  References: RoFormer, https://arxiv.org/abs/2104.09864
  """
  if position is None:
    position = jnp.arange(inputs.shape[1])[jnp.newaxis]
  timescale = rotary.timescales(inputs.shape[-1], min_timescale, max_timescale)
  return rotary.rotate(inputs, position, timescale).astype(inputs.dtype)


def apply_dropout(
  x: Float[Array, '...'],
  prng_key: pytypes.PRNGKey,
  dropout_prob: float,
  broadcast_dims: Sequence[int] = (),
) -> Float[Array, '...']:
  """Returns `x` with elements dropped, and the others scaled up.

  Args:
    x: of any shape.
    prng_key: decides which are dropped.
    dropout_prob: how many are.
    broadcast_dims: dimensions whose elements are dropped together.
  """
  if dropout_prob == 0.0:
    return x
  shape = [1 if i in broadcast_dims else n for i, n in enumerate(x.shape)]
  keep = jax.random.bernoulli(prng_key, 1.0 - dropout_prob, shape)
  return jnp.where(keep, x / (1.0 - dropout_prob), jnp.zeros((), x.dtype))
