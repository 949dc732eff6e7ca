# SPDX-License-Identifier: Apache-2.0
"""Configs of GLaM: every second layer has a mixture of experts.

References: GLaM, https://arxiv.org/abs/2112.06905
"""

from __future__ import annotations

import dataclasses
from typing import Any

from praxis import base_layer, pax_fiddle
from praxis.layers import (
  activations,
  attentions,
  embedding_softmax,
  normalizations,
  transformer_models,
  transformers,
)
from praxis.layers.checkpoint_policy import AutodiffCheckpointType
from praxis.layers.transformer_models import LanguageModelType

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockOptions:
  """What the layers of GLaM and Grok let one choose."""

  # Whether there are experts, and the size within them; ff_dim when absent.
  moe: bool = False
  moe_hidden_dim: int | None = None
  # How tokens are routed to e_dim experts; see TransformerFeedForwardMoe, whose
  # expert_capacity_dim is c_dim.
  moe_gating_embedding_level: str = 'token'
  moe_load_balance_loss_weight: float = 0.01
  moe_gating_func: str = 'top2'
  moe_gating_logit_cap: float = 0.0
  num_groups: int = 1
  c_dim: int | None = None
  capacity_factor: float = 0.0
  e_dim: int | None = None
  # Of feed-forward blocks and of experts.
  ffn_activation_cls: type[activations.BaseActivation] = activations.GELU
  use_gated_activation: bool = True
  # Whether later positions are hidden, and whether there is cross attention.
  mask_self_attention: bool = True
  cross_attention: bool = False
  # Of the attention; its relative bias has the last three.
  atten_logit_cap: float = 0.0
  attention_extra_logit: float | None = 0.0
  combine_qkv: bool = False
  relative_attention_num_buckets: int = 32
  relative_attention_max_distance: int = 128
  bidirectional: bool = False


def GlamStackedTransformerHParams(
  model_dim: int,
  ff_dim: int,
  attention_num_heads: int,
  attention_key_value_dim: int,
  *,
  name: str = 'transformer',
  **options: Any,
) -> pax_fiddle.Config[transformers.StackedTransformer]:
  """Returns the Config of one dense layer, or of one with experts and one.

  They have no biases, RmsNorm, a relative bias in attention and two products
  before the gated activation. `options` are the fields of `BlockOptions`.
  """
  choice = BlockOptions(**options)
  sizes = model_dim, ff_dim, attention_num_heads, attention_key_value_dim
  block = stack(*sizes, choice).set(name=name)
  block.set(num_layers=2 if choice.moe else 1)
  layer = block.transformer_layer_params_tpl
  set_attention(layer.tr_atten_tpl, choice, use_bias=False)
  layer.tr_fflayer_tpl.set(has_bias=False, apply_padding_first=True)
  return block


def GlamUniTransformerLmHParams(
  vocab_size: int,
  model_dim: int,
  ff_dim: int,
  attention_num_heads: int,
  attention_key_value_dim: int,
  num_transformer_layers: int,
  *,
  name: str = 'transformer',
  use_tgt_labels_size_as_loss_denominator: bool = True,
  z_loss_weight: float = 1e-4,
  repeat: bool = True,
  num_pipeline_stages: int = 1,
  num_pipeline_microbatches: int = 1,
  model_type: LanguageModelType = LanguageModelType.CAUSAL,
  checkpoint_policy: AutodiffCheckpointType = (
    AutodiffCheckpointType.SAVE_NOTHING
  ),
  **options: Any,
) -> pax_fiddle.Config[transformer_models.TransformerLm]:
  """Returns the Config of a language model of GLaM's layers.

  Args:
    vocab_size: how many tokens there are.
    model_dim: size of what goes from layer to layer.
    ff_dim: size within feed-forward blocks.
    attention_num_heads: heads of the attention.
    attention_key_value_dim: size of a head.
    num_transformer_layers: even if there are experts, in every second layer.
    name: of the model.
    use_tgt_labels_size_as_loss_denominator: whether the loss is averaged over
      all positions rather than those that count.
    z_loss_weight: of the loss that keeps logits small.
    repeat: whether layers are stacked and scanned; not in a pipeline.
    num_pipeline_stages: into how many stages layers are divided.
    num_pipeline_microbatches: into how many parts a batch is, then.
    model_type: what a token attends to.
    checkpoint_policy: what the backward pass of scanned layers finds.
    **options: fields of `BlockOptions`.
  """
  sizes = (model_dim, ff_dim, attention_num_heads, attention_key_value_dim)
  block = GlamStackedTransformerHParams(*sizes, name='decoder_block', **options)
  lm = language_model(
    vocab_size,
    model_dim,
    z_loss_weight=z_loss_weight,
    loss_over_all_positions=use_tgt_labels_size_as_loss_denominator,
  ).set(name=name, model_type=model_type)
  blocks = whole(num_transformer_layers, block.num_layers, 'layers of a block')
  if num_pipeline_stages > 1:
    lm.stacked_transformer_tpl = pipelined(
      block, blocks, num_pipeline_stages, num_pipeline_microbatches
    )
  elif repeat:
    lm.stacked_transformer_tpl = repeated(block, blocks, checkpoint_policy)
  else:
    lm.stacked_transformer_tpl = _extended(block, blocks)
  return lm


def stack(
  model_dim: int,
  ff_dim: int,
  num_heads: int,
  dim_per_head: int,
  options: BlockOptions,
) -> pax_fiddle.Config[transformers.StackedTransformer]:
  """Returns a stack with RmsNorm, whose layer 0 has experts if there are."""
  activation = pax_fiddle.Config(options.ffn_activation_cls)
  block = pax_fiddle.Config(
    transformers.StackedTransformer,
    packed_input=True,
    moe_layers=[0] if options.moe else None,
    model_dims=model_dim,
    hidden_dims=ff_dim,
    num_heads=num_heads,
    dim_per_head=dim_per_head,
    num_experts=options.e_dim,
    num_groups=options.num_groups,
    gating_func=options.moe_gating_func,
    unadjusted_expert_capacity_factor=options.capacity_factor,
    mask_self_attention=options.mask_self_attention,
    use_cross_attention=options.cross_attention,
  )
  layer = block.transformer_layer_params_tpl
  layer.tr_fflayer_tpl.set(hidden_dims=ff_dim)
  experts = block.moe_layer_tpl.set(
    hidden_dims=options.moe_hidden_dim or ff_dim,
    num_experts=options.e_dim,
    num_groups=options.num_groups,
    gating_logit_cap=options.moe_gating_logit_cap,
    expert_capacity_dim=options.c_dim,
    unadjusted_expert_capacity_factor=options.capacity_factor,
    moe_load_balance_loss_weight=options.moe_load_balance_loss_weight,
    gating_func=options.moe_gating_func,
    moe_gating_embedding_level=options.moe_gating_embedding_level,
  )
  for feed_forward in (layer.tr_fflayer_tpl, experts):
    feed_forward.set(
      input_dims=model_dim,
      activation_tpl=activation.clone(),
      use_gated_activation=options.use_gated_activation,
      internal_gshard_variance_scaling_fan_in_init=True,
    )
  for normed in (layer, layer.tr_fflayer_tpl, experts):
    normed.ln_tpl = pax_fiddle.Config(normalizations.RmsNorm, direct_scale=True)
  return block


def set_attention(
  attention: LayerTpl, options: BlockOptions, *, use_bias: bool
) -> None:
  """Sets what attention is like: relative bias, no scale, GShard's weights."""
  attention.set(
    attention_extra_logit=options.attention_extra_logit,
    use_bias=use_bias,
    atten_logit_cap=options.atten_logit_cap,
    # The initial values take the place of the scale.
    internal_gshard_gaussian_init=True,
    internal_enable_query_scale=False,
    internal_enable_per_dim_scale=False,
    output_proj_use_nhd_shape=True,
    relative_bias_tpl=pax_fiddle.Config(
      attentions.RelativeBias,
      relative_attention_num_buckets=options.relative_attention_num_buckets,
      relative_attention_max_distance=options.relative_attention_max_distance,
      bidirectional=options.bidirectional,
    ),
  )
  # Biases keep the heads apart.
  attention.proj_tpl.attention_combine_dims = not use_bias
  if options.combine_qkv:
    attention.combine_qkv = True
    attention.combined_qkv_proj_tpl.set(
      use_bias=use_bias, attention_combine_dims=not use_bias
    )


def language_model(
  vocab_size: int,
  model_dim: int,
  *,
  z_loss_weight: float,
  loss_over_all_positions: bool,
) -> pax_fiddle.Config[transformer_models.TransformerLm]:
  """Returns a model without position embedding, with GShard's softmax."""
  return pax_fiddle.Config(
    transformer_models.TransformerLm,
    packed_input=True,
    model_dims=model_dim,
    vocab_size=vocab_size,
    position_emb_tpl=None,
    final_ln_tpl=pax_fiddle.Config(
      normalizations.RmsNorm, name='rms_norm', dim=model_dim
    ),
    softmax_tpl=pax_fiddle.Config(
      embedding_softmax.GShardSharedEmbeddingSoftmax,
      name='emb',
      input_dims=model_dim,
      num_classes=vocab_size,
      z_loss_weight=z_loss_weight,
      use_tgt_labels_size_as_loss_denominator=loss_over_all_positions,
    ),
  )


def repeated(
  block: LayerTpl, times: int, policy: AutodiffCheckpointType
) -> pax_fiddle.Config[transformers.StackedTransformerRepeated]:
  """Returns blocks whose weights are stacked."""
  return pax_fiddle.Config(
    transformers.StackedTransformerRepeated,
    name='decoder',
    unroll_in_decode=True,
    block=block,
    x_times=times,
    checkpoint_policy=policy,
  )


def pipelined(
  block: LayerTpl, times: int, stages: int, microbatches: int
) -> pax_fiddle.Config[transformers.PipelinedTransformer]:
  """Returns `times` blocks, divided into the stages of a pipeline.

  Raises:
    ValueError: `stages` do not divide `times`.
  """
  per_stage = whole(times, stages, 'num_pipeline_stages')
  return pax_fiddle.Config(
    transformers.PipelinedTransformer,
    pipeline_stage=_extended(block, per_stage),
    num_pipeline_stages=stages,
    num_pipeline_microbatches=microbatches,
    stream_io=True,
  )


def whole(count: int, parts: int, name: str) -> int:
  """Returns count / parts.

  Raises:
    ValueError: `parts`, which are the `name`, do not divide it.
  """
  if count % parts:
    raise ValueError(
      f'num_transformer_layers must be a multiple of {name}, got {count} for '
      f'{parts}'
    )
  return count // parts


def _extended(block: LayerTpl, times: int) -> LayerTpl:
  """Returns one stack of all layers of the block, so many times."""
  layers = block.num_layers * times
  has_experts = block.moe_layers is not None
  moe_layers = list(range(0, layers, block.num_layers)) if has_experts else None
  return block.set(num_layers=layers, moe_layers=moe_layers)
