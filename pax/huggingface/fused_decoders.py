# SPDX-License-Identifier: Apache-2.0
"""Phi-3 and GLM-4, whose tensors have several projections."""

from __future__ import annotations

from pax.huggingface import config_settings, layer_norms
from pax.huggingface.config_settings import Json
from pax.huggingface.rotary_decoder import RotaryDecoder


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
  num_layers = config_settings.size(config, 'num_hidden_layers')
  return config_settings.rotary_decoder(
    {'rms_norm_eps': 1e-5, **config},
    has_partial_rotary=True,
    activation=config.get('hidden_act', 'silu'),
    windows=(config.get('sliding_window'),) * num_layers,
    has_fused_qkv=True,
    has_fused_gates=True,
  )


def read_glm4(config: Json) -> RotaryDecoder:
  """Returns the settings of a GLM-4 of the releases 0414.

  Raises:
    ValueError: A setting is not supported.
  """
  return config_settings.rotary_decoder(
    {
      'num_key_value_heads': 2,
      'head_dim': 128,
      'rms_norm_eps': 1.5625e-7,
      'partial_rotary_factor': 0.5,
      **config,
    },
    has_partial_rotary=True,
    has_interleaved_pairs=True,
    activation=config.get('hidden_act', 'silu'),
    has_qkv_bias=config.get('attention_bias', True),
    norms=layer_norms.GLM_4,
    has_fused_gates=True,
  )
