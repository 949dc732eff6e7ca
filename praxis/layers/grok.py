# SPDX-License-Identifier: Apache-2.0
"""Grok-1 Configs: a mixture of experts in every layer.

References: https://github.com/xai-org/grok-1
"""

from __future__ import annotations

from praxis import base_layer, pax_fiddle
from praxis.layers import (
  activations,
  glam,
  multi_query_attention,
  transformer_models,
  transformers,
)
from praxis.layers.checkpoint_policy import AutodiffCheckpointType
from praxis.layers.transformer_models import LanguageModelType, stack_configs

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


def GrokStackedTransformerHParams(
  model_dim: int,
  ff_dim: int,
  attention_num_heads: int,
  attention_num_groups: int,
  attention_key_value_dim: int,
  name: str = 'transformer',
  moe: bool = False,
  moe_hidden_dim: int | None = None,
  moe_gating_embedding_level: str = 'token',
  ffn_activation_cls: type[activations.BaseActivation] = activations.GELU,
  use_gated_activation: bool = True,
  mask_self_attention: bool = True,
  cross_attention: bool = False,
  atten_logit_cap: float = 0.0,
  attention_extra_logit: float | None = 0.0,
  relative_attention_num_buckets: int = 32,
  relative_attention_max_distance: int = 128,
  moe_load_balance_loss_weight: float = 0.01,
  moe_gating_func: str = 'top2',
  moe_gating_logit_cap: float = 0.0,
  num_groups: int = 1,
  c_dim: int | None = None,
  capacity_factor: float = 0.0,
  e_dim: int | None = None,
  combine_qkv: bool = False,
  bidirectional: bool = False,
  use_fp8: bool = False,
) -> pax_fiddle.Config[transformers.StackedTransformer]:
  """Returns a block of one layer, MoE or dense.

  The layer has attention biases, RmsNorm, relative attention bias,
  grouped-query attention and gated activations.

  Args:
    model_dim: model dimension.
    ff_dim: hidden dimension of feed-forward blocks.
    attention_num_heads: number of query heads.
    attention_num_groups: number of key and value heads.
    attention_key_value_dim: dimension of a head.
    name: of the stack.
    moe: whether to use mixtures of experts; see `glam.BlockOptions`, as all
      arguments without a description of their own.
    use_fp8: whether projections and experts use fp8 matrix products.
  """
  block_options = glam.BlockOptions.from_arguments(locals())
  dims = model_dim, ff_dim, attention_num_heads, attention_key_value_dim
  return _stack(name, dims, attention_num_groups, block_options, use_fp8)


def _stack(
  name: str,
  dims: tuple[int, int, int, int],
  attention_num_groups: int,
  block_options: glam.BlockOptions,
  use_fp8: bool,
) -> pax_fiddle.Config[transformers.StackedTransformer]:
  """Returns a block; see `GrokStackedTransformerHParams`."""
  block = glam.block_template(*dims, block_options)
  block.set(name=name, num_layers=1)
  glam.set_activation(block.moe_layer_tpl, block_options)
  layer = block.transformer_layer_params_tpl
  layer.tr_atten_tpl = pax_fiddle.Config(
    multi_query_attention.MultiQueryDotProductAttention,
    num_kv_heads=attention_num_groups,
  )
  glam.configure_attention(layer.tr_atten_tpl, block_options, use_bias=True)
  if use_fp8:
    stack_configs.set_fp8_einsums(block, 'delayed')
  return block


def GrokUniTransformerLmHParams(
  vocab_size: int,
  model_dim: int,
  ff_dim: int,
  attention_num_heads: int,
  attention_num_groups: int,
  attention_key_value_dim: int,
  num_transformer_layers: int,
  name: str = 'transformer',
  moe: bool = False,
  moe_hidden_dim: int | None = None,
  moe_gating_embedding_level: str = 'token',
  ffn_activation_cls: type[activations.BaseActivation] = activations.GELU,
  use_gated_activation: bool = True,
  atten_logit_cap: float = 0.0,
  attention_extra_logit: float | None = 0.0,
  relative_attention_num_buckets: int = 32,
  relative_attention_max_distance: int = 128,
  moe_gating_func: str = 'top2',
  moe_gating_logit_cap: float = 0.0,
  num_groups: int = 1,
  c_dim: int | None = None,
  capacity_factor: float = 0.0,
  e_dim: int | None = None,
  use_tgt_labels_size_as_loss_denominator: bool = True,
  moe_load_balance_loss_weight: float = 0.01,
  z_loss_weight: float = 1e-4,
  combine_qkv: bool = False,
  bidirectional: bool = False,
  num_pipeline_stages: int = 1,
  num_pipeline_microbatches: int = 1,
  model_type: LanguageModelType = LanguageModelType.CAUSAL,
  checkpoint_policy: AutodiffCheckpointType = (
    AutodiffCheckpointType.SAVE_NOTHING
  ),
  use_fp8: bool = False,
) -> pax_fiddle.Config[transformer_models.TransformerLm]:
  """Returns the Config of a Grok language model.

  Args:
    vocab_size: number of tokens in the vocabulary.
    model_dim: model dimension.
    ff_dim: hidden dimension of feed-forward blocks.
    attention_num_heads: number of query heads.
    attention_num_groups: number of key and value heads.
    attention_key_value_dim: dimension of a head.
    num_transformer_layers: number of layers.
    name: of the model.
    moe: whether to use mixtures of experts; see `glam.BlockOptions`, as all
      arguments without a description of their own.
    use_tgt_labels_size_as_loss_denominator: whether the loss is averaged over
      all positions instead of those with a weight.
    z_loss_weight: weight of the z-loss on log(sum(exp(logits))).
    num_pipeline_stages: number of pipeline stages, 1 for no pipeline.
    num_pipeline_microbatches: number of microbatches of the pipeline.
    model_type: the tokens that a token attends to.
    checkpoint_policy: remat policy of scanned blocks or pipeline iterations.
    use_fp8: whether projections and experts use fp8 matrix products.
  """
  block_options = glam.BlockOptions.from_arguments(locals())
  dims = model_dim, ff_dim, attention_num_heads, attention_key_value_dim
  block = _stack(
    'decoder_block', dims, attention_num_groups, block_options, use_fp8
  )
  lm = glam.language_model(
    vocab_size,
    model_dim,
    z_loss_weight=z_loss_weight,
    loss_over_all_positions=use_tgt_labels_size_as_loss_denominator,
  ).set(name=name, model_type=model_type)
  stack: LayerTpl
  if num_pipeline_stages == 1:
    stack = glam.repeated(block, num_transformer_layers, checkpoint_policy)
  else:
    stack = glam.pipelined(
      block,
      num_transformer_layers,
      num_pipeline_stages,
      num_pipeline_microbatches,
    )
    stack.checkpoint_policy = checkpoint_policy
  return lm.set(stacked_transformer_tpl=stack)
