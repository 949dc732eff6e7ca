# SPDX-License-Identifier: Apache-2.0
"""Quantized and sparse layers, and products in fp8."""

from __future__ import annotations

from praxis import pax_fiddle
from praxis.layers import linears, quantization
from praxis.layers.injection import fp8_nvidia_gpu
from praxis.layers.quantization import linears as quantized_linears
from praxis.layers.quantization import low_rank_adaptation
from praxis.layers.quantization import quantization_hparams as hparams
from praxis.layers.quantization.sparsity import (
  sparsity_hparams,
  sparsity_modes,
)
from tests.golden.layer_case import case, f32, i32

_HEADS = {'input_dim': 8, 'num_heads': 2, 'dim_per_head': 8}
_DIMS = {'input_dims': 8, 'output_dims': 16}
_NGRAMS = {'num_heads': 2, 'dim_per_head': 4}
_AXES = ['data', 'mdl', None, None]


def _served(cls, rank=2, weight=None, **fields):
  params = hparams.QuantizationParams(
    weight_params=hparams.WeightQuantizationParams(**weight or {})
  )
  cfg = cls.config(quantization=params, **fields)
  cfg.weight_split_dims_mapping.wt = _AXES[:rank]
  return cfg


def _trained():
  params = {'precision': 8}
  return hparams.QuantizationParams(
    quantization_type=hparams.QuantizationType.AQT,
    mode=hparams.QuantizationMode.TRAINING,
    act_params=hparams.ActQuantizationParams(**params),
    weight_params=hparams.WeightQuantizationParams(**params),
  )


def _attention(cls, **fields):
  cfg = cls.config(
    quantization=_trained(), input_dim=8, hidden_dim=8, num_heads=2, **fields
  )
  return case(cfg, *[f32(2, 3, 8)] * 3, f32(1, 1, 3, 3))


_SPARSE = sparsity_hparams.SparsityHParams(
  weight_params=sparsity_hparams.WeightSparsityParams(prune_rate=(2, 4)),
  mode=sparsity_modes.TrainingMode(),
)
_INT4 = {'precision': 4}

CASES = {
  'Linear': case(_served(quantization.Linear, **_DIMS), f32(2, 3, 8)),
  'LinearInt4': case(
    _served(quantization.Linear, weight=_INT4, **_DIMS), f32(2, 3, 8)
  ),
  'LinearBlocks': case(
    _served(
      quantization.Linear,
      weight={'block_size': 4, 'use_symmetric': False},
      **_DIMS,
    ),
    f32(2, 3, 8),
  ),
  'LinearSparse': case(
    quantization.Linear.config(quantization=None, sparsity=_SPARSE, **_DIMS),
    f32(2, 3, 8),
  ),
  'LinearLoRA': case(
    _served(quantization.LinearLoRA, lora_rank=2, norm_order='mid', **_DIMS),
    f32(2, 3, 8),
  ),
  'AttentionProjection': case(
    _served(quantization.AttentionProjection, 3, **_HEADS), f32(2, 3, 8)
  ),
  'AttentionProjectionLoRA': case(
    _served(quantization.AttentionProjectionLoRA, 3, lora_rank=2, **_HEADS),
    f32(2, 3, 8),
  ),
  'CombinedQKVProjectionLayer': case(
    _served(quantization.CombinedQKVProjectionLayer, 3, _INT4, **_HEADS),
    f32(2, 3, 8),
  ),
  'OneHeadedAttentionProjection': case(
    _served(
      quantization.OneHeadedAttentionProjection, input_dim=8, output_dim=4
    ),
    f32(2, 3, 8),
  ),
  'Einsum': case(
    _served(
      quantization.Einsum, eqn='...d,df->...f', w_shape=(8, 4), use_bias=True
    ),
    f32(2, 3, 8),
  ),
  'Embedding': case(
    _served(quantization.Embedding, num_classes=16, input_dims=8), i32(2, 3)
  ),
  'NClassMajorSharedEmbeddingSoftmax': case(
    _served(
      quantization.NClassMajorSharedEmbeddingSoftmax,
      num_classes=16,
      input_dims=8,
    ),
    f32(2, 3, 8),
    method='get_logits',
  ),
  'SharedEmbeddingSoftmax': case(
    _served(quantization.SharedEmbeddingSoftmax, num_classes=16, input_dims=8),
    f32(2, 3, 8),
    method='get_logits',
  ),
  'LinearActScaling': case(
    _served(quantized_linears.LinearActScaling, **_DIMS), f32(2, 3, 8)
  ),
  **{
    cls.__name__: case(
      _served(cls, rank, lora_rank=2, lora_alpha=4.0, **fields), f32(2, 3, 8)
    )
    for cls, rank, fields in (
      (low_rank_adaptation.AdaptedLinear, 2, _DIMS),
      (low_rank_adaptation.AdaptedAttentionProjection, 3, _HEADS),
      (low_rank_adaptation.AdaptedCombinedQKVProjectionLayer, 3, _HEADS),
      (
        low_rank_adaptation.AdaptedOneHeadedAttentionProjection,
        2,
        {'input_dim': 8, 'output_dim': 4},
      ),
    )
  },
  'DotProductAttention': _attention(quantization.DotProductAttention),
  'DotProductAttentionWithContext': _attention(
    quantization.DotProductAttentionWithContext, left_context=2, right_context=0
  ),
  'Conv2D': case(
    _served(
      quantization.Conv2D,
      4,
      filter_shape=(3, 3, 8, 4),
      filter_stride=(1, 1),
    ),
    f32(2, 5, 5, 8),
  ),
  'Ngrammer': case(
    _served(
      quantization.Ngrammer,
      ngram_vocab_size=20,
      unigram_vocab_size=7,
      ngram_emb_dim=4,
      **_NGRAMS,
    ),
    i32(2, 5),
    f32(2, 5, 8),
  ),
  'VQNgrammer': case(
    _served(
      quantization.VQNgrammer,
      ngram_vocab_size=20,
      ngram_emb_dim=4,
      num_clusters=3,
      **_NGRAMS,
    ),
    i32(2, 5),
    f32(2, 5, 8),
  ),
  **{
    cls.__name__: case(
      cls.config(quantization=_trained(), precisions=[4, 8], **fields),
      f32(2, 3, 8),
    )
    for cls, fields in (
      (quantization.SearchableLinear, _DIMS),
      (quantization.SearchableAttentionProjection, _HEADS),
      (quantization.SearchableCombinedQKVProjectionLayer, _HEADS),
    )
  },
  **{
    cls.__name__: case(cls.config(**fields), f32(2, 3, 8))
    for cls, fields in (
      (quantization.FeedForwardOverflowCheck, _DIMS),
      (quantization.AttentionProjectionOverflowCheck, _HEADS),
      (quantization.CombinedQKVProjectionLayerOverflowCheck, _HEADS),
      (
        quantization.OneHeadedAttentionProjectionOverflowCheck,
        {'input_dim': 8, 'output_dim': 4},
      ),
    )
  },
  'Fp8CurrentScalingEinsumGatedOp': case(
    fp8_nvidia_gpu.Fp8CurrentScalingEinsumGatedOp.config(),
    '...y,yz->...z',
    f32(2, 3, 8),
    f32(8, 4),
    f32(8, 4),
  ),
  'Fp8CurrentScalingEinsumOp': case(
    linears.Linear.config(
      einsum_tpl=pax_fiddle.Config(fp8_nvidia_gpu.Fp8CurrentScalingEinsumOp),
      **_DIMS,
    ),
    f32(2, 3, 8),
  ),
  'Fp8EinsumGatedOp': case(
    fp8_nvidia_gpu.Fp8EinsumGatedOp.config(),
    '...y,yz->...z',
    f32(2, 3, 8),
    f32(8, 4),
    f32(8, 4),
  ),
  'Fp8EinsumOp': case(
    linears.Linear.config(
      einsum_tpl=pax_fiddle.Config(fp8_nvidia_gpu.Fp8EinsumOp), **_DIMS
    ),
    f32(2, 3, 8),
  ),
}
