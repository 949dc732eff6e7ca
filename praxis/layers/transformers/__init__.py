# SPDX-License-Identifier: Apache-2.0
"""Transformer layers and stacks of them; this file only re-exports."""

from praxis.alias_names import module_getattr
from praxis.layers.transformers.branch_norm_moe import BranchNormFeedForwardMoe
from praxis.layers.transformers.feed_forward import TransformerFeedForward
from praxis.layers.transformers.feed_forward_moe import (
  TransformerFeedForwardMoe,
)
from praxis.layers.transformers.layer_input_branch import LayerInputBranch
from praxis.layers.transformers.pipelined import PipelinedTransformer
from praxis.layers.transformers.repeated import (
  PipelineCompatibleStackedTransformerRepeated,
  StackedTransformerRepeated,
)
from praxis.layers.transformers.stack_masks import (
  compute_attention_masks_for_extend_step,
  compute_attention_masks_for_fprop,
)
from praxis.layers.transformers.stacked import StackedTransformer
from praxis.layers.transformers.transformer import Transformer
from praxis.layers.transformers.without_feed_forward import (
  TransformerWithoutFeedForward,
)

__getattr__ = module_getattr(__name__)

__all__ = [
  'BranchNormFeedForwardMoe',
  'LayerInputBranch',
  'PipelineCompatibleStackedTransformerRepeated',
  'PipelinedTransformer',
  'StackedTransformer',
  'StackedTransformerRepeated',
  'Transformer',
  'TransformerFeedForward',
  'TransformerFeedForwardMoe',
  'TransformerWithoutFeedForward',
  'compute_attention_masks_for_extend_step',
  'compute_attention_masks_for_fprop',
]
