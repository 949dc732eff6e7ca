# SPDX-License-Identifier: Apache-2.0
"""gpt-oss."""

from __future__ import annotations

from typing import Any

from pax.huggingface.layers.gpt_oss_experts import GptOssExperts
from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.models import config_settings
from pax.huggingface.models.config_settings import Json

_ROPE = {
  'rope_type': 'yarn',
  'factor': 32.0,
  'beta_fast': 32.0,
  'beta_slow': 1.0,
  'truncate': False,
  'original_max_position_embeddings': 4096,
}


def read_gpt_oss(config: Json) -> RotaryDecoder:
  """Returns the settings of a gpt-oss.

  Raises:
    ValueError: A setting is not supported.
  """
  config = _with_defaults(config)
  has_bias = config['attention_bias']
  attention = config_settings.rotary_attention(
    config, has_qkv_bias=has_bias, has_output_bias=has_bias, has_sinks=True
  )
  windows = config_settings.windows(
    config, config['layer_types'], config['sliding_window']
  )
  num_layers = config_settings.size(config, 'num_hidden_layers')
  experts = config_settings.experts(
    config,
    GptOssExperts,
    hidden_dims=config_settings.size(config, 'intermediate_size'),
    layers=tuple(range(num_layers)),
    slope=config['swiglu_alpha'],
    limit=config['swiglu_limit'],
  )
  return config_settings.rotary_decoder(
    config,
    config_settings.with_windows(attention, windows),
    # No layer has it: all have experts.
    feed_forward=config_settings.feed_forward(config, activation='silu'),
    experts=experts,
  )


def _with_defaults(config: Json) -> dict[str, Any]:
  """Returns a config.json with the settings of transformers that it lacks."""
  rope = {} if config.get('rope_scaling') else {'rope_parameters': _ROPE}
  defaults = {
    **rope,
    'rope_theta': 150_000.0,
    'head_dim': 64,
    'num_key_value_heads': 8,
    'num_local_experts': 128,
    'num_experts_per_tok': 4,
    'rms_norm_eps': 1e-5,
    'attention_bias': True,
    'sliding_window': 128,
    'swiglu_alpha': 1.702,
    'swiglu_limit': 7.0,
  }
  config = {**defaults, **config}
  if not config.get('layer_types'):
    config['layer_types'] = [
      'full_attention' if i % 2 else 'sliding_attention'
      for i in range(config['num_hidden_layers'])
    ]
  return config
