# SPDX-License-Identifier: Apache-2.0
"""Seed-OSS: a Llama with biases of queries, keys and values."""

from __future__ import annotations

from pax.huggingface import config_settings
from pax.huggingface.config_settings import Json
from pax.huggingface.rotary_decoder import RotaryDecoder


def read(config: Json) -> RotaryDecoder:
  """Returns the settings of a Seed-OSS.

  Raises:
    ValueError: A setting is not supported.
  """
  return config_settings.rotary_decoder(
    {
      'head_dim': 128,
      'num_key_value_heads': 8,
      'rope_theta': 10_000_000.0,
      **config,
    },
    activation=config.get('hidden_act', 'silu'),
    has_qkv_bias=config.get('attention_bias', True),
    has_output_bias=config.get('attention_out_bias', False),
    has_ffn_bias=config.get('mlp_bias', False),
  )
