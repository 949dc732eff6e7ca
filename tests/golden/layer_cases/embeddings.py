# SPDX-License-Identifier: Apache-2.0
"""Embeddings, positions and softmaxes."""

from __future__ import annotations

from typing import Any

from praxis.layers import embedding_softmax
from praxis.layers.embedding_softmax import rotary_scaling
from tests.golden.layer_case import case, f32, i32

_SIZES = {'input_dims': 8, 'num_classes': 16}
_LABELS = (f32(2, 3, 8), f32(2, 3, 1), i32(2, 3, 1))


def _table(cls: Any, **fields: Any) -> Any:
  cfg = cls.config(**_SIZES, **fields)
  cfg.weight_split_dims_mapping.wt = ['data', 'mdl']
  return cfg


def _rotary(scaling: Any = None) -> Any:
  cfg = embedding_softmax.RotaryPositionalEmbedding.config(
    embedding_dims=4, scaling_tpl=scaling and scaling.config()
  )
  return case(cfg, f32(2, 3, 2, 4))


CASES = {
  'Embedding': case(
    _table(embedding_softmax.Embedding, lookup_style='matmul'), i32(2, 3)
  ),
  'FullSoftmax': case(
    _table(embedding_softmax.FullSoftmax, z_loss_weight=0.1), *_LABELS
  ),
  'SharedEmbeddingSoftmax': case(
    _table(embedding_softmax.SharedEmbeddingSoftmax), *_LABELS
  ),
  'SharedEmbeddingSoftmax vectors': case(
    _table(embedding_softmax.SharedEmbeddingSoftmax, scale_sqrt_depth=True),
    i32(2, 3),
    method='emb_lookup',
  ),
  'NClassMajorSharedEmbeddingSoftmax': case(
    _table(embedding_softmax.NClassMajorSharedEmbeddingSoftmax), *_LABELS
  ),
  'GShardSharedEmbeddingSoftmax': case(
    _table(embedding_softmax.GShardSharedEmbeddingSoftmax), *_LABELS
  ),
  'SigmoidCrossEntropy': case(
    _table(embedding_softmax.SigmoidCrossEntropy), *_LABELS
  ),
  'TokenCounter': case(
    embedding_softmax.TokenCounter.config(), i32(2, 3), f32(2, 3)
  ),
  'PositionalEmbedding': case(
    embedding_softmax.PositionalEmbedding.config(embedding_dims=8),
    position=i32(2, 3),
  ),
  'PositionalEmbedding2D': case(
    embedding_softmax.PositionalEmbedding2D.config(
      h=2, w=3, embedding_dims=8, num_prepend_cls_tokens=1
    )
  ),
  'TrainablePositionalEmbedding': case(
    embedding_softmax.TrainablePositionalEmbedding.config(
      max_seq_length=5, embedding_dims=8
    ),
    seq_length=3,
  ),
  'TrainablePositionalEmbedding index': case(
    embedding_softmax.TrainablePositionalEmbedding.config(
      max_seq_length=5, embedding_dims=8, lookup_style='index'
    ),
    position=i32(2, 3),
  ),
  'RotaryPositionalEmbedding': _rotary(),
  'LinearRotaryScaling': _rotary(rotary_scaling.LinearRotaryScaling),
  'Llama3RotaryScaling': _rotary(rotary_scaling.Llama3RotaryScaling),
  'ProportionalRotaryScaling': _rotary(
    rotary_scaling.ProportionalRotaryScaling
  ),
  'YarnRotaryScaling': _rotary(rotary_scaling.YarnRotaryScaling),
}
