# SPDX-License-Identifier: Apache-2.0
"""Seed-OSS."""

from __future__ import annotations

from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.models import config_settings
from pax.huggingface.models.config_settings import Json


def read_seed_oss(config: Json) -> RotaryDecoder:
  """Returns the settings of a Seed-OSS.

  Raises:
    ValueError: A setting is not supported.
  """
  config = {
    'head_dim': 128,
    'num_key_value_heads': 8,
    'rope_theta': 10_000_000.0,
    **config,
  }
  attention = config_settings.rotary_attention(
    config,
    has_qkv_bias=config.get('attention_bias', True),
    has_output_bias=config.get('attention_out_bias', False),
  )
  return config_settings.rotary_decoder(
    config,
    config_settings.of_all_layers(config, attention),
    feed_forward=config_settings.feed_forward(
      config, has_bias=config.get('mlp_bias', False)
    ),
  )
