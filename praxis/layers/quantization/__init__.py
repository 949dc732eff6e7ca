# SPDX-License-Identifier: Apache-2.0
"""Layers with quantized and sparse weights; re-exports the layers."""

from praxis.layers.quantization.attentions import (
  AttentionProjection,
  AttentionProjectionLoRA,
  CombinedQKVProjectionLayer,
  DotProductAttention,
  DotProductAttentionWithContext,
  OneHeadedAttentionProjection,
)
from praxis.layers.quantization.convolutions import Conv2D
from praxis.layers.quantization.einsum import Einsum
from praxis.layers.quantization.embedding_softmax import (
  Embedding,
  NClassMajorSharedEmbeddingSoftmax,
  SharedEmbeddingSoftmax,
)
from praxis.layers.quantization.linears import Linear, LinearLoRA
from praxis.layers.quantization.ngrammer import Ngrammer, VQNgrammer
from praxis.layers.quantization.operations import einsum
from praxis.layers.quantization.overflow_check import (
  AttentionProjectionOverflowCheck,
  CombinedQKVProjectionLayerOverflowCheck,
  FeedForwardOverflowCheck,
  OneHeadedAttentionProjectionOverflowCheck,
)
from praxis.layers.quantization.searchable import (
  SearchableAttentionProjection,
  SearchableCombinedQKVProjectionLayer,
  SearchableLinear,
)
