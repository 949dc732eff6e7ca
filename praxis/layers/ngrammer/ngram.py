# SPDX-License-Identifier: Apache-2.0
"""An n-grammer of ids that are given."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import pax_fiddle
from praxis.layers import embedding_softmax
from praxis.layers.ngrammer import bigrams
from praxis.layers.ngrammer.per_head_norm import NgramCombiner


class Ngrammer(NgramCombiner):
  """Adds vectors of bigrams, looked up by hash, to embeddings of unigrams."""

  # How many unigrams there are.
  unigram_vocab_size: int = 0

  def setup(self) -> None:
    super().setup()
    table = self._table_tpl().set(
      num_classes=self.ngram_vocab_size, input_dims=self.ngram_emb_dim
    )
    table.weight_split_dims_mapping.wt = self.weight_split_dims_mapping.wt
    self.create_children('ngram_table', [table] * self.num_heads)

  def _table_tpl(self) -> pax_fiddle.Config:
    """Returns the Config of a head's table; quantised variants override it."""
    return pax_fiddle.Config(embedding_softmax.Embedding)

  def __call__(
    self,
    input_ids: Int[Array, 'B L *N'],
    input_embs: Float[Array, 'B L *D'],
    paddings: Num[Array, 'B L'] | None = None,
    segment_pos: Int[Array, 'B L'] | None = None,
    merge_heads: bool = True,
    pair_ids: Int[Array, 'B N L'] | None = None,
    emb_var: Float[Array, 'V D'] | None = None,
    **kwargs: Any,
  ) -> Float[Array, 'B L *E']:
    """Returns the embeddings with those of bigrams.

    Args:
      input_ids: the unigrams, of all heads or by head.
      input_embs: their embeddings, with heads merged or apart.
      paddings: 1 where the output is to be 0.
      segment_pos: position in the segment, of packed inputs.
      merge_heads: whether the output has heads merged.
      pair_ids: by head, the position of each id's partner, L for none; absent,
        it is the id before.
      emb_var: not used, nor are further arguments; other n-grammers do.
      **kwargs: not used.
    """
    vectors = []
    for i, table in enumerate(self.ngram_table):
      ids = bigrams.get_bigram_ids(
        input_ids if input_ids.ndim == 2 else input_ids[:, :, i],
        self.unigram_vocab_size,
        segment_pos,
        None if pair_ids is None else pair_ids[:, i],
      )
      hashed = bigrams.hash_ids(ids, i, self.ngram_vocab_size)
      vectors.append(table.emb_lookup(hashed))
    heads = self._combine(
      self._split_heads(input_embs), jnp.stack(vectors, axis=2)
    )
    return self._finish(heads, paddings, merge_heads)
