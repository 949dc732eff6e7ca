# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts, alone, in a stack, and in the models made of them."""

from __future__ import annotations

from typing import Any

from praxis.layers import glam, grok, transformers
from tests.golden.layer_case import case, f32, i32

_INPUTS = (f32(2, 4, 6), f32(2, 4))
_SPLIT = {
  'me': [None, None],
  'emh': ['data', None, 'mdl'],
  'ehm': ['data', 'mdl', None],
}


def _experts(
  cls: Any = transformers.TransformerFeedForwardMoe, **fields: Any
) -> Any:
  cfg = cls.config(
    input_dims=6, hidden_dims=12, num_experts=4, num_groups=2, **fields
  )
  cfg.weight_split_dims_mapping.set(**_SPLIT)
  return case(cfg, *_INPUTS)


def _stack() -> Any:
  cfg = transformers.StackedTransformer.config(
    model_dims=6,
    hidden_dims=12,
    num_heads=2,
    num_layers=2,
    moe_layers=[1],
    num_experts=4,
    num_groups=2,
  )
  cfg.moe_layer_tpl.weight_split_dims_mapping.set(**_SPLIT)
  return case(cfg, *_INPUTS)


_EXPERTS = {'moe': True, 'e_dim': 4, 'c_dim': 2, 'moe_hidden_dim': 10}
_GLAM = glam.GlamUniTransformerLmHParams(
  16, 8, 12, 2, 4, num_transformer_layers=4, **_EXPERTS
)
_GROK = grok.GrokUniTransformerLmHParams(
  16, 8, 12, 4, 2, 4, num_transformer_layers=2, **_EXPERTS
)
_TOKENS = {'segment_ids': i32(2, 4), 'segment_pos': i32(2, 4)}

CASES = {
  'TransformerFeedForwardMoe': _experts(),
  'TransformerFeedForwardMoe in shards': _experts(
    expert_weight_shards=2,
    explicit_fan_in_fan_out_axes=True,
    internal_gshard_variance_scaling_fan_in_init=False,
    gating_func='expert_choice',
  ),
  'TransformerFeedForwardMoe gated': _experts(
    gating_func='dropless',
    use_gated_activation=True,
    norm_policy='primer_hybrid',
  ),
  'TransformerFeedForwardMoe of DeepSeek': _experts(
    gating_func='dropless',
    gate_function='sigmoid',
    gate_scale=2.5,
    use_choice_bias=True,
    shared_experts_tpl=transformers.TransformerFeedForward.config(
      hidden_dims=5
    ),
  ),
  'BranchNormFeedForwardMoe': _experts(
    transformers.BranchNormFeedForwardMoe,
    gating_func='dropless',
    norm_policy='primer_hybrid',
    shared_experts_tpl=transformers.TransformerFeedForward.config(
      hidden_dims=5
    ),
  ),
  'StackedTransformer': _stack(),
  'GLaM': case(_GLAM, i32(2, 4), f32(2, 4), **_TOKENS),
  'Grok': case(_GROK, i32(2, 4), f32(2, 4), **_TOKENS),
}
