# SPDX-License-Identifier: Apache-2.0
"""The layers of Praxis and their modules; each is imported at first use."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

_NAMES = {
  'activations': (
    'BaseActivation CubedReLU ELU GELU Identity LeakyReLU ReLU ReLU6 Sigmoid '
    'SiLU SquaredReLU Swish Tanh'
  ),
  'adapters': 'AdaptedTransformerFeedForward MultitaskResidualAdapter',
  'attentions': (
    'AttentionProjection CausalDepthwiseConv1D CombinedQKVProjectionLayer '
    'DotProductAttention DotProductAttentionXL LocalSelfAttention '
    'LocalSelfAttentionAlibi LocalSelfAttentionRelativeBias '
    'LocalSelfAttentionXL PerDimScale RelativeBias causal_mask '
    'causal_segment_mask convert_paddings_to_mask segment_mask'
  ),
  'augmentations': 'MaskedLmDataAugmenter TemporalShifting',
  'base_ops': 'ArrayLookup EinsumGatedOp EinsumOp',
  'bregman': 'BregmanPCA',
  'checkpoint_policy': 'AutodiffCheckpointType',
  'conformers': (
    'Conformer DotProductAttentionWithContext '
    'DotProductAttentionWithContextXL SelfAttentionWithNormAndResidual'
  ),
  'context_parallel': (
    'ContextParallelAttention ContextParallelGroupedQueryAttention'
  ),
  'convolutions': (
    'Conv2D ConvBNAct ConvBNActWithPadding DepthwiseConv1D LightConv1D'
  ),
  'einsum': 'Einsum',
  'embedding_softmax': (
    'Embedding FullSoftmax GShardSharedEmbeddingSoftmax PositionalEmbedding '
    'PositionalEmbedding2D SharedEmbeddingSoftmax SigmoidCrossEntropy '
    'TokenCounter TrainablePositionalEmbedding'
  ),
  'frnn': 'FRnn LstmFrnn StackFrnn',
  'gated_delta_net': 'GatedDeltaNet',
  'grouped_query_attention': 'GroupedQueryAttention',
  'linears': (
    'Bias FeedForward Linear MLPBlock StackingOverTime project_last_dim'
  ),
  'losses': 'BiTemperedLoss',
  'mamba2': 'Mamba2',
  'mobilenet': 'MobileNet',
  'models': (
    'BertModel ClassificationMLPModel ClassificationModel LanguageModel '
    'LanguageModelContinuousBatching LanguageModelDPO SequenceModel '
    'SequenceModelDPO'
  ),
  'ngrammer': 'Ngrammer VQNgrammer VectorQuantization get_bigram_ids',
  'normalizations': (
    'BaseNormalization BatchNorm GroupNorm IdentityNorm LayerNorm RmsNorm '
    'RmsNormNoScale compute_moments'
  ),
  'pipeline': (
    'CircularLayerwiseShardablePipelined LayerwiseShardablePipelined'
  ),
  'poolings': 'GlobalPooling Pooling Pooling1D',
  'quantizer': 'RandomVectorQuantizer VectorQuantizer quantize_vector',
  'repeats': 'Repeat',
  'resnets': 'ResNet ResNetBlock',
  'rnn_cell': 'CifgLstmCellSimple LayerNormalizedLstmCellSimple LstmCellSimple',
  'ssm': 'SSM',
  'ssm_transformers': 'SSMGated SSMTransformer',
  'sequential': 'Sequential',
  'spectrum_augmenter': 'SpectrumAugmenter',
  'stochastics': 'Dropout StochasticResidual',
  'transformer_models': (
    'LanguageModelType MultiTokenPrediction TransformerEncoderDecoder '
    'TransformerLm'
  ),
  'transformers': (
    'PipelinedTransformer StackedTransformer StackedTransformerRepeated '
    'Transformer TransformerFeedForward TransformerFeedForwardMoe '
    'compute_attention_masks_for_extend_step compute_attention_masks_for_fprop'
  ),
  'vanillanets': 'VanillaBlock VanillaNet',
  'vits': 'VisionTransformer VitEntryLayers VitExitLayers',
}
_MODULE_OF = {
  name: module for module, names in _NAMES.items() for name in names.split()
}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
  if name in _MODULE_OF:
    module = importlib.import_module(f'{__name__}.{_MODULE_OF[name]}')
    return getattr(module, name)
  if importlib.util.find_spec(f'{__name__}.{name}') is not None:
    return importlib.import_module(f'{__name__}.{name}')
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return __all__
