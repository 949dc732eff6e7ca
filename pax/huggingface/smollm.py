# SPDX-License-Identifier: Apache-2.0
"""SmolLM3, in which some layers have no positions."""

from __future__ import annotations

from pax.huggingface import config_settings
from pax.huggingface.config_settings import Json
from pax.huggingface.rotary_decoder import RotaryDecoder


def read_smollm3(config: Json) -> RotaryDecoder:
  """Returns the settings of a SmolLM3.

  Raises:
    ValueError: A setting is not supported.
  """
  rotary_layers = config_settings.rotary_layers(config)
  window = config.get('sliding_window')
  is_windowed = config.get('use_sliding_window', False)
  kinds = config.get('layer_types') or [
    'sliding_attention' if is_windowed and not rotates else 'full_attention'
    for rotates in rotary_layers
  ]
  has_bias = config.get('attention_bias', False)
  return config_settings.rotary_decoder(
    {
      'num_key_value_heads': 4,
      'rope_theta': 2_000_000.0,
      'tie_word_embeddings': True,
      **config,
    },
    activation=config.get('hidden_act', 'silu'),
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    has_ffn_bias=config.get('mlp_bias', False),
    windows=config_settings.windows(kinds, window),
    rotary_layers=rotary_layers,
  )
