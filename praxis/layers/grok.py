# SPDX-License-Identifier: Apache-2.0
"""Configs of Grok-1: every layer has a mixture of experts.

References: https://github.com/xai-org/grok-1
"""

from __future__ import annotations

from typing import Any

from praxis import base_layer, pax_fiddle
from praxis.layers import (
  glam,
  multi_query_attention,
  transformer_models,
  transformers,
)
from praxis.layers.checkpoint_policy import AutodiffCheckpointType
from praxis.layers.injection import fp8_nvidia_gpu
from praxis.layers.transformer_models import LanguageModelType

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


def GrokStackedTransformerHParams(
  model_dim: int,
  ff_dim: int,
  attention_num_heads: int,
  attention_num_groups: int,
  attention_key_value_dim: int,
  *,
  name: str = 'transformer',
  use_fp8: bool = False,
  **options: Any,
) -> pax_fiddle.Config[transformers.StackedTransformer]:
  """Returns the Config of one layer, with experts or without.

  It has biases, RmsNorm, a relative bias in attention, attention_num_groups
  heads of keys and values, and two products before the gated activation.
  `options` are the fields of `glam.BlockOptions`. With use_fp8, products are of
  8-bit floating-point numbers.
  """
  choice = glam.BlockOptions(**options)
  sizes = model_dim, ff_dim, attention_num_heads, attention_key_value_dim
  block = glam.stack(*sizes, choice).set(name=name, num_layers=1)
  layer = block.transformer_layer_params_tpl
  layer.tr_atten_tpl = pax_fiddle.Config(
    multi_query_attention.MultiQueryDotProductAttention,
    num_kv_heads=attention_num_groups,
  )
  glam.set_attention(layer.tr_atten_tpl, choice, use_bias=True)
  if use_fp8:
    _set_fp8(block, choice)
  return block


def GrokUniTransformerLmHParams(
  vocab_size: int,
  model_dim: int,
  ff_dim: int,
  attention_num_heads: int,
  attention_num_groups: int,
  attention_key_value_dim: int,
  *,
  num_transformer_layers: int,
  name: str = 'transformer',
  use_tgt_labels_size_as_loss_denominator: bool = True,
  z_loss_weight: float = 1e-4,
  num_pipeline_stages: int = 1,
  num_pipeline_microbatches: int = 1,
  model_type: LanguageModelType = LanguageModelType.CAUSAL,
  checkpoint_policy: AutodiffCheckpointType = (
    AutodiffCheckpointType.SAVE_NOTHING
  ),
  **options: Any,
) -> pax_fiddle.Config[transformer_models.TransformerLm]:
  """Returns the Config of a language model of Grok's layers.

  Args:
    vocab_size: how many tokens there are.
    model_dim: size of what goes from layer to layer.
    ff_dim: size within feed-forward blocks.
    attention_num_heads: heads of queries.
    attention_num_groups: heads of keys and values.
    attention_key_value_dim: size of a head.
    num_transformer_layers: all of the same kind.
    name: of the model.
    use_tgt_labels_size_as_loss_denominator: whether the loss is averaged over
      all positions rather than those that count.
    z_loss_weight: of the loss that keeps logits small.
    num_pipeline_stages: into how many stages layers are divided.
    num_pipeline_microbatches: into how many parts a batch is, then.
    model_type: what a token attends to.
    checkpoint_policy: what the backward pass finds.
    **options: of `GrokStackedTransformerHParams`.
  """
  heads = attention_num_heads, attention_num_groups, attention_key_value_dim
  block = GrokStackedTransformerHParams(
    model_dim, ff_dim, *heads, name='decoder_block', **options
  )
  lm = glam.language_model(
    vocab_size,
    model_dim,
    z_loss_weight=z_loss_weight,
    loss_over_all_positions=use_tgt_labels_size_as_loss_denominator,
  ).set(name=name, model_type=model_type)
  layers, stages = num_transformer_layers, num_pipeline_stages
  if stages == 1:
    stack = glam.repeated(block, layers, checkpoint_policy)
  else:
    stack = glam.pipelined(block, layers, stages, num_pipeline_microbatches)
    stack.checkpoint_policy = checkpoint_policy
  return lm.set(stacked_transformer_tpl=stack)


def _set_fp8(block: LayerTpl, options: glam.BlockOptions) -> None:
  einsum = pax_fiddle.Config(fp8_nvidia_gpu.Fp8EinsumOp)
  layer = block.transformer_layer_params_tpl
  attention = layer.tr_atten_tpl
  attention.proj_tpl.einsum_tpl = einsum.clone()
  if options.combine_qkv:
    attention.combined_qkv_proj_tpl.einsum_tpl = einsum.clone()
  linear = layer.tr_fflayer_tpl.fflayer_tpl.linear_tpl
  linear.einsum_tpl = einsum.clone()
  block.moe_layer_tpl.set(
    einsum_tpl=einsum.clone(),
    einsum_gated_tpl=pax_fiddle.Config(fp8_nvidia_gpu.Fp8EinsumGatedOp),
  )
