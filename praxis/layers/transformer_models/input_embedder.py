# SPDX-License-Identifier: Apache-2.0
"""The inputs of a stack from token ids: embeddings, segments, positions."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer
from praxis.layers.transformer_models import ngrammer_state


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputEmbedder:
  """Token, n-gram and position embeddings, composed of a model's children."""

  # Defines `emb_lookup(ids)`; an embedding, or a softmax with shared weights.
  token_emb: base_layer.BaseLayer
  ngrammer: base_layer.BaseLayer | None
  position_emb: base_layer.BaseLayer | None

  def embed(
    self,
    ids: Int[Array, 'B T'],
    segment_pos: Int[Array, 'B T'] | None,
    paddings: Num[Array, 'B T'],
    emb_var: Float[Array, 'V D'] | None = None,
  ) -> Float[Array, 'B T D']:
    """Returns the inputs of the stack.

    Args:
      ids: token ids.
      segment_pos: position of each token in its segment; None: in its row.
      paddings: 1 for padding.
      emb_var: embeddings of the vocabulary, for n-grammers that need them.
    """
    embedded = self.lookup(ids)
    if self.ngrammer is not None:
      embedded = self.ngrammer(
        input_ids=ids,
        input_embs=embedded,
        paddings=paddings,
        segment_pos=segment_pos,
        emb_var=emb_var,
      )
    if self.position_emb is None:
      return embedded
    return embedded + self.position_emb(
      seq_length=ids.shape[1], position=segment_pos
    )

  def embed_step(
    self,
    model: base_layer.BaseLayer,
    ids: Int[Array, 'B L'],
    position: Int[Array, 'B P'],
    ngram_pos: Int[Array, 'B L'] | None = None,
  ) -> Float[Array, 'B P D']:
    """Returns the inputs of the stack for the last P of L decoding steps.

    Args:
      model: the layer that holds the decode state of the n-grammer.
      ids: token ids; those before the last P are seen by the n-grammer only.
      position: position of each of the last P tokens in its segment.
      ngram_pos: positions of all L tokens, for the n-grammer.
    """
    embedded = self.lookup(ids)
    if self.ngrammer is not None:
      embedded = ngrammer_state.extend_step(
        model, self.ngrammer, ids, embedded, ngram_pos
      )
    embedded = embedded[:, ids.shape[1] - position.shape[1] :]
    if self.position_emb is None:
      return embedded
    return embedded + self.position_emb(position=position)

  def lookup(self, ids: Int[Array, 'B T']) -> Float[Array, 'B T D']:
    """Returns the token embeddings."""
    return self.token_emb.emb_lookup(ids)


def default_segments(
  paddings: Num[Array, 'B T'],
  segment_ids: Int[Array, 'B T'] | None,
  segment_pos: Int[Array, 'B T'] | None,
) -> tuple[Int[Array, 'B T'], Int[Array, 'B T']]:
  """Returns segment ids and positions; by default each row is one segment."""
  if segment_ids is None:
    segment_ids = (1 - paddings).astype(jnp.int32)
  if segment_pos is None:
    row = jnp.arange(paddings.shape[1], dtype=jnp.int32)
    segment_pos = jnp.broadcast_to(row, paddings.shape)
  return segment_ids, segment_pos
