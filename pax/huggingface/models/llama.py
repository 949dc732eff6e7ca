# SPDX-License-Identifier: Apache-2.0
"""Llama 2 and 3."""

from __future__ import annotations

from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.models import config_settings
from pax.huggingface.models.config_settings import Json


def read_llama(config: Json) -> RotaryDecoder:
  """Returns the settings of a Llama.

  Raises:
    ValueError: A setting is not supported.
  """
  has_bias = config.get('attention_bias', False)
  attention = config_settings.rotary_attention(
    config, has_qkv_bias=has_bias, has_output_bias=has_bias
  )
  return config_settings.rotary_decoder(
    config,
    config_settings.of_all_layers(config, attention),
    feed_forward=config_settings.feed_forward(
      config, has_bias=config.get('mlp_bias', False)
    ),
  )
