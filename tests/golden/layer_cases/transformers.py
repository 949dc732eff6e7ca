# SPDX-License-Identifier: Apache-2.0
"""Transformer layers, alone, stacked, repeated and pipelined."""

from __future__ import annotations

from typing import Any

from praxis import pax_fiddle
from praxis.layers import (
  attentions,
  linears,
  multi_head_latent_attention,
  ngrammer,
  normalizations,
  pipeline,
  transformers,
)
from tests.golden.layer_case import case, f32, i32

_SIZES = {'hidden_dims': 12, 'num_heads': 2}
_INPUTS = (f32(4, 4, 6), f32(4, 4))
_MASK = f32(4, 1, 4, 4)


def _shard_attention(cfg: Any) -> None:
  cfg.weight_split_dims_mapping.proj = ['data', 'mdl', None]


def _shard_feed_forward(cfg: Any) -> Any:
  cfg.weight_split_dims_mapping.set(ffn0=['data', 'mdl'], ffn1=['mdl', 'data'])
  return cfg


def _feed_forward(**fields: Any) -> Any:
  cfg = transformers.TransformerFeedForward.config(
    input_dims=6, hidden_dims=12, **fields
  )
  return case(_shard_feed_forward(cfg), *_INPUTS)


def _layer(**fields: Any) -> Any:
  cfg = transformers.Transformer.config(**_SIZES, **fields)
  _shard_attention(cfg.tr_atten_tpl)
  _shard_feed_forward(cfg.tr_fflayer_tpl)
  return cfg


def _stack(**fields: Any) -> Any:
  cfg = transformers.StackedTransformer.config(
    model_dims=6, num_layers=2, **_SIZES, **fields
  )
  return cfg.set(transformer_layer_params_tpl=_layer())


def _pipeline(**fields: Any) -> Any:
  cfg = transformers.PipelinedTransformer.config(
    pipeline_stage=_stack(),
    num_pipeline_stages=2,
    num_pipeline_microbatches=2,
    **fields,
  )
  cfg.weight_split_dims_mapping.stages = ['replica']
  return case(cfg, *_INPUTS)


def _stages(cls: Any, **fields: Any) -> Any:
  cfg = pax_fiddle.Config(
    cls,
    num_stages=2,
    num_microbatches=2,
    single_stage_body=linears.Linear.config(input_dims=6, output_dims=6),
    **fields,
  )
  return case(cfg, f32(4, 6))


def _repeated(cls: Any, split: tuple[str | None, ...], **fields: Any) -> Any:
  cfg = pax_fiddle.Config(cls, block=_stack(), **fields)
  cfg.weight_split_dims_mapping.block = split
  return case(cfg, *_INPUTS)


CASES = {
  'TransformerFeedForward': _feed_forward(),
  'TransformerFeedForward gated': _feed_forward(
    use_gated_activation=True,
    has_bias=False,
    norm_policy='primer_hybrid',
    ln_tpl=normalizations.RmsNorm.config(),
  ),
  'TransformerFeedForward post_skip': _feed_forward(
    norm_policy='post_skip', output_dims=6
  ),
  'Transformer': case(_layer(input_dims=6), *_INPUTS, _MASK),
  'Transformer latent attention': case(
    _layer(
      input_dims=6,
      tr_atten_tpl=pax_fiddle.Config(
        multi_head_latent_attention.MultiHeadLatentAttention,
        q_lora_rank=5,
        kv_lora_rank=3,
        qk_nope_head_dim=2,
        qk_rope_head_dim=4,
        v_head_dim=3,
      ),
    ),
    *_INPUTS,
    _MASK,
  ),
  'Transformer cross': case(
    _layer(
      input_dims=6,
      use_cross_attention=True,
      norm_policy='primer_hybrid',
      cross_atten_tpl=attentions.DotProductAttention.config(use_bias=False),
    ),
    *_INPUTS,
    _MASK,
    f32(4, 3, 6),
    f32(4, 1, 4, 3),
  ),
  'Transformer n-grams': case(
    _layer(
      input_dims=6,
      dim_per_head=4,
      ngrammer_tpl=ngrammer.VQNgrammer.config(
        num_clusters=3,
        num_heads=2,
        dim_per_head=4,
        ngram_vocab_size=8,
        ngram_emb_dim=4,
      ),
    ),
    *_INPUTS,
    _MASK,
  ),
  'LayerInputBranch': case(
    transformers.LayerInputBranch.config(model_dims=6, layer_input_dims=3),
    f32(4, 4, 6),
    f32(4, 4, 3),
  ),
  'StackedTransformer': case(
    _stack(use_cross_attention=True, mask_self_attention=True),
    *_INPUTS,
    cross_inputs=f32(4, 3, 6),
    cross_paddings=f32(4, 3),
  ),
  'StackedTransformer packed': case(
    _stack(mask_self_attention=True, packed_input=True),
    *_INPUTS,
    segment_mask=_MASK,
    segment_pos=i32(4, 4),
  ),
  'StackedTransformerRepeated': _repeated(
    transformers.StackedTransformerRepeated, (None,), x_times=3
  ),
  'PipelineCompatibleStackedTransformerRepeated': _repeated(
    transformers.PipelineCompatibleStackedTransformerRepeated,
    (None, 'replica'),
    x_times=4,
    nd_prefix_shape=[2, 2],
  ),
  'LayerwiseShardablePipelined': _stages(pipeline.LayerwiseShardablePipelined),
  'CircularLayerwiseShardablePipelined': _stages(
    pipeline.CircularLayerwiseShardablePipelined, circular_repeat=2
  ),
  'PipelinedTransformer': _pipeline(),
  'PipelinedTransformer circular': _pipeline(circular_repeat=2, stream_io=True),
}
