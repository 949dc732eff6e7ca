# SPDX-License-Identifier: Apache-2.0
"""N-grammers and Bregman PCA."""

from __future__ import annotations

from praxis.layers import bregman, ngrammer
from tests.golden.layer_case import case, f32, i32

_HEADS = {'num_heads': 2, 'dim_per_head': 4}
_PCA = {'num_components': 3, 'end_step': 10}
_INPUTS = (i32(2, 5), f32(2, 5, 8))


def _sharded(cfg):
  cfg.weight_split_dims_mapping.wt = ['mdl', 'data']
  return cfg


CASES = {
  'BregmanPCA': case(
    bregman.BregmanPCA.config(input_dims=[4, 5], **_PCA), f32(2, 4, 5)
  ),
  'BregmanCompression': case(
    ngrammer.BregmanCompression.config(**_HEADS, **_PCA), f32(2, 5, 8)
  ),
  'VectorQuantization': case(
    ngrammer.VectorQuantization.config(num_clusters=3, **_HEADS), f32(2, 5, 8)
  ),
  'Ngrammer': case(
    _sharded(
      ngrammer.Ngrammer.config(
        ngram_vocab_size=20, unigram_vocab_size=7, ngram_emb_dim=3, **_HEADS
      )
    ),
    *_INPUTS,
  ),
  'VQNgrammer': case(
    _sharded(
      ngrammer.VQNgrammer.config(
        ngram_vocab_size=20,
        unigram_vocab_size=7,
        ngram_emb_dim=4,
        num_clusters=3,
        full_update_cache_frequency=2,
        **_HEADS,
      )
    ),
    *_INPUTS,
    emb_var=f32(7, 8),
  ),
  'BregmanNgrammer': case(
    _sharded(
      ngrammer.BregmanNgrammer.config(
        ngram_vocab_size=20, ngram_emb_dim=3, **_HEADS, **_PCA
      )
    ),
    *_INPUTS,
  ),
  'NgrammerStub': case(ngrammer.NgrammerStub.config(**_HEADS), *_INPUTS),
}
