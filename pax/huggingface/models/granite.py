# SPDX-License-Identifier: Apache-2.0
"""Granite 3 without experts."""

from __future__ import annotations

from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.models import config_settings
from pax.huggingface.models.config_settings import Json


def read_granite(config: Json) -> RotaryDecoder:
  """Returns the settings of a Granite 3 without experts.

  Raises:
    ValueError: A setting is not supported.
  """
  has_bias = config.get('attention_bias', False)
  attention = config_settings.rotary_attention(
    config,
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    query_scale=_factor(config, 'attention_multiplier'),
  )
  return config_settings.rotary_decoder(
    config,
    config_settings.of_all_layers(config, attention),
    feed_forward=config_settings.feed_forward(
      config, has_bias=config.get('mlp_bias', False)
    ),
    embedding_scale=_factor(config, 'embedding_multiplier'),
    residual_scale=_factor(config, 'residual_multiplier'),
    head_scale=1 / _factor(config, 'logits_scaling'),
  )


def _factor(config: Json, name: str) -> float:
  """Returns a factor, 1 if it is absent.

  Raises:
    ValueError: It is not positive.
  """
  value = config.get(name, 1.0)
  if type(value) not in (int, float) or value <= 0:
    raise ValueError(
      f'{name} in config.json must be a positive number, got {value!r}; use the'
      ' file that save_pretrained writes'
    )
  return float(value)
