# SPDX-License-Identifier: Apache-2.0
"""N-Grammer of soft bigrams: products of Bregman PCA coefficients."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle
from praxis.base_layer import WeightHParams
from praxis.layers import bregman
from praxis.layers.ngrammer.bregman_compression import (
  BregmanCompression,
  bregman_pca_fields,
)
from praxis.layers.ngrammer.per_head_norm import NgramCombiner


class BregmanNgrammer(NgramCombiner, bregman.BregmanSettings):
  """Augments embeddings with embeddings of soft bigrams.

  The outer product of the Bregman PCA coefficients of a position and of the
  previous one is mapped by the learned `correlation` to weights over n-grams.
  The bigram embedding is the weighted sum of the n-gram embeddings.
  """

  def setup(self) -> None:
    super().setup()
    if not 0 < self.num_components <= self.dim_per_head:
      raise ValueError(
        f'BregmanNgrammer {self.name!r} needs num_components from 1 to '
        f'dim_per_head={self.dim_per_head}, got {self.num_components}'
      )
    components, vocab = self.num_components, self.ngram_vocab_size
    split = self.weight_split_dims_mapping.wt or (None, None)
    self._create_table(
      'correlation',
      [components, components, vocab, self.num_heads],
      [None, None, split[0], None],
    )
    self._create_table(
      'embedding_table',
      [vocab, self.ngram_emb_dim, self.num_heads],
      [*split, None],
    )
    compression = pax_fiddle.Config(
      BregmanCompression,
      num_heads=self.num_heads,
      dim_per_head=self.dim_per_head,
      **bregman_pca_fields(self),
    )
    self.create_child('bregman_compression_layer', compression)

  def _create_table(
    self, name: str, shape: list[int], split: list[Any]
  ) -> None:
    flags = base_layer.WeightHParamsCollection
    hparams = WeightHParams(
      shape=shape,
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=split,
      collections=[flags.REQUIRES_MEAN_SYNC],
    )
    self.create_variable(name, hparams)

  def __call__(
    self,
    input_ids: Int[Array, 'B L *N'] | None,
    input_embs: Float[Array, 'B L *D'],
    paddings: Num[Array, 'B L'] | None = None,
    merge_heads: bool = True,
    **kwargs: Any,
  ) -> Float[Array, 'B L *E']:
    """Returns the embeddings augmented with soft bigrams.

    Args:
      input_ids: ignored.
      input_embs: embeddings, [B, L, N * H] or [B, L, N, H].
      paddings: 1 for padded positions; their outputs are 0.
      merge_heads: returns [B, L, N * H] instead of [B, L, N, H].
      **kwargs: ignored; arguments of other N-Grammers.
    """
    heads = self._split_heads(input_embs)
    current = self.bregman_compression_layer(heads, paddings)
    # The first position is paired with itself.
    previous = jnp.concatenate([current[:, :1], current[:, :-1]], axis=1)
    pairs = jnp.einsum('blnc,blnk->blnck', previous, current)
    weights = jnp.einsum('blnck,ckvn->blnv', pairs, self.theta.correlation)
    ngrams = jnp.einsum('blnv,vhn->blnh', weights, self.theta.embedding_table)
    heads = self._add_ngrams(heads, ngrams)
    return self._mask_and_merge(heads, paddings, merge_heads)
