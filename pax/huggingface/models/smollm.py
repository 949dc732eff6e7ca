# SPDX-License-Identifier: Apache-2.0
"""SmolLM3."""

from __future__ import annotations

from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.models import config_settings
from pax.huggingface.models.config_settings import Json


def read_smollm3(config: Json) -> RotaryDecoder:
  """Returns the settings of a SmolLM3.

  Raises:
    ValueError: A setting is not supported.
  """
  config = {
    'num_key_value_heads': 4,
    'rope_theta': 2_000_000.0,
    'tie_word_embeddings': True,
    **config,
  }
  rotary_layers = config_settings.rotary_layers(config)
  is_windowed = config.get('use_sliding_window', False)
  kinds = config.get('layer_types') or [
    'sliding_attention' if is_windowed and not rotates else 'full_attention'
    for rotates in rotary_layers
  ]
  windows = config_settings.windows(config, kinds, config.get('sliding_window'))
  has_bias = config.get('attention_bias', False)
  attention = config_settings.rotary_attention(
    config, has_qkv_bias=has_bias, has_output_bias=has_bias
  )
  return config_settings.rotary_decoder(
    config,
    config_settings.with_rotation_in(
      rotary_layers, config_settings.with_windows(attention, windows)
    ),
    feed_forward=config_settings.feed_forward(
      config, has_bias=config.get('mlp_bias', False)
    ),
  )
