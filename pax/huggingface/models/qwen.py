# SPDX-License-Identifier: Apache-2.0
"""Qwen2, Qwen2.5 and Qwen3."""

from __future__ import annotations

import dataclasses

from pax.huggingface.layers.mixture_of_experts import ExpertTensors
from pax.huggingface.layers.rotary_attention import RotaryAttention
from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.models import config_settings
from pax.huggingface.models.config_settings import Json


def read_qwen2(config: Json) -> RotaryDecoder:
  """Returns the settings of a Qwen2 or a Qwen2.5.

  Raises:
    ValueError: A setting is not supported.
  """
  attention = config_settings.rotary_attention(config, has_qkv_bias=True)
  return config_settings.rotary_decoder(
    config, config_settings.with_windows(attention, _windows(config))
  )


def read_qwen3(config: Json) -> RotaryDecoder:
  """Returns the settings of a Qwen3.

  Raises:
    ValueError: A setting is not supported.
  """
  config = {'head_dim': 128, **config}
  return config_settings.rotary_decoder(
    config,
    config_settings.with_windows(_attention(config), _windows(config)),
  )


def read_qwen3_moe(config: Json) -> RotaryDecoder:
  """Returns the settings of a Qwen3 with experts.

  Raises:
    ValueError: A setting is not supported.
  """
  config = {
    'num_key_value_heads': 4,
    'num_experts': 128,
    'num_experts_per_tok': 8,
    **config,
  }
  attention = _attention(config)
  if config.get('use_sliding_window', False):
    window = config.get('sliding_window', 4096)
    attention = dataclasses.replace(attention, window=window)
  return config_settings.rotary_decoder(
    config,
    config_settings.of_all_layers(config, attention),
    experts=config_settings.experts(
      config,
      hidden_dims=config.get('moe_intermediate_size', 768),
      layers=config_settings.expert_layers(config),
      normalize_gates=config.get('norm_topk_prob', False),
      tensors=ExpertTensors(
        mixture='mlp', gate='gate_proj', up='up_proj', down='down_proj'
      ),
    ),
  )


def _attention(config: Json) -> RotaryAttention:
  """Returns the attention of a Qwen3 without a window."""
  has_bias = config.get('attention_bias', False)
  return config_settings.rotary_attention(
    config,
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    has_head_norms=True,
  )


def _windows(config: Json) -> tuple[int | None, ...]:
  num_layers = config_settings.size(config, 'num_hidden_layers')
  if not config.get('use_sliding_window', False):
    return (None,) * num_layers
  first = config.get('max_window_layers', 28)
  kinds = config.get('layer_types') or [
    'sliding_attention' if i >= first else 'full_attention'
    for i in range(num_layers)
  ]
  return config_settings.windows(
    config, kinds, config.get('sliding_window', 4096)
  )
