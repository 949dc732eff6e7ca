# SPDX-License-Identifier: Apache-2.0
"""GLM-4.5 and 4.6: the experts of DeepSeek-V3 with grouped-query attention."""

from __future__ import annotations

import dataclasses

from pax.huggingface import config_settings, deepseek
from pax.huggingface.config_settings import Json
from pax.huggingface.rotary_decoder import RotaryDecoder


def read_glm4_moe(config: Json) -> RotaryDecoder:
  """Returns a model of type glm4_moe."""
  config = {
    'num_key_value_heads': 8,
    'rms_norm_eps': 1e-5,
    'partial_rotary_factor': 0.5,
    'moe_intermediate_size': 1408,
    'n_routed_experts': 128,
    'num_experts_per_tok': 8,
    'n_group': 1,
    'topk_group': 1,
    'first_k_dense_replace': 1,
    'routed_scaling_factor': 1.0,
    **config,
  }
  decoder = config_settings.rotary_decoder(
    config,
    has_partial_rotary=True,
    activation=config.get('hidden_act', 'silu'),
    has_qkv_bias=config.get('attention_bias', False),
    has_head_norms=config.get('use_qk_norm', False),
  )
  experts = deepseek.v3_experts(config, has_bias=False)
  return dataclasses.replace(decoder, experts=experts)
