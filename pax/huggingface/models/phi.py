# SPDX-License-Identifier: Apache-2.0
"""Phi-3 and Phi-4."""

from __future__ import annotations

from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.models import config_settings
from pax.huggingface.models.config_settings import Json


def read_phi3(config: Json) -> RotaryDecoder:
  """Returns the settings of a Phi-3 or a Phi-4.

  Raises:
    ValueError: A setting is not supported.
  """
  kind = config_settings.rope(config)['rope_type']
  # Other scalings of this family are LongRoPE by older names.
  if kind != 'default':
    raise ValueError(
      'rope_type in rope_scaling or rope_parameters in config.json of a phi3'
      f" must be 'default', got {kind!r}; LongRoPE has no layer in praxis, use"
      ' a model without it'
    )
  attention = config_settings.rotary_attention(
    config,
    has_partial_rotary=True,
    window=config.get('sliding_window'),
    has_fused_qkv=True,
  )
  return config_settings.rotary_decoder(
    {'rms_norm_eps': 1e-5, **config},
    config_settings.of_all_layers(config, attention),
    feed_forward=config_settings.feed_forward(
      config, fused_tensors=('gate_up_proj', 'down_proj')
    ),
  )
