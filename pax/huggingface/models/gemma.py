# SPDX-License-Identifier: Apache-2.0
"""Gemma 1 to 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pax.huggingface.layers import layer_norms
from pax.huggingface.layers.mixers import Mixer
from pax.huggingface.layers.rotary_attention import RotaryAttention
from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.models import config_settings
from pax.huggingface.models.config_settings import Json

_ACTIVATION = 'gelu_pytorch_tanh'


def read_gemma(config: Json) -> RotaryDecoder:
  """Returns the settings of a Gemma.

  Raises:
    ValueError: A setting is not supported.
  """
  # Files of the first release name the exact GELU, and mean the approximation.
  activation = config.get('hidden_activation') or config.get('hidden_act')
  if activation in (None, 'gelu'):
    activation = _ACTIVATION
  attention = _attention(config)
  return _decoder(
    config, config_settings.of_all_layers(config, attention), activation
  )


def read_gemma2(config: Json) -> RotaryDecoder:
  """Returns the settings of a Gemma 2.

  Raises:
    ValueError: A setting is not supported.
  """
  config = {'num_key_value_heads': 4, **config}
  kinds = config.get('layer_types') or [
    'full_attention' if i % 2 else 'sliding_attention'
    for i in range(config_settings.size(config, 'num_hidden_layers'))
  ]
  windows = config_settings.windows(
    config, kinds, config.get('sliding_window', 4096)
  )
  attention = _attention(
    config,
    query_scale=config.get('query_pre_attn_scalar', 256) ** -0.5,
    logit_cap=config.get('attn_logit_softcapping', 50.0),
  )
  return _decoder(
    config,
    config_settings.with_windows(attention, windows),
    config.get('hidden_activation', _ACTIVATION),
    norms=layer_norms.INPUTS_AND_OUTPUTS,
    logit_cap=config.get('final_logit_softcapping', 30.0),
  )


def read_gemma3(config: Json) -> RotaryDecoder:
  """Returns the settings of the language model of a Gemma 3.

  Raises:
    ValueError: A setting is not supported.
  """
  config = {'num_key_value_heads': 4, **config}
  period = config.get('sliding_window_pattern') or config.get(
    '_sliding_window_pattern', 6
  )
  kinds = config.get('layer_types') or [
    'sliding_attention' if (i + 1) % period else 'full_attention'
    for i in range(config_settings.size(config, 'num_hidden_layers'))
  ]
  windows = config_settings.windows(
    config, kinds, config.get('sliding_window', 4096)
  )
  rope, window_rope = config_settings.ropes_by_layer_type(
    config,
    {
      'full_attention': config.get('rope_theta', 1_000_000.0),
      'sliding_attention': config.get('rope_local_base_freq', 10_000.0),
    },
  )
  attention = _attention(
    {**config, **rope},
    has_head_norms=True,
    query_scale=config.get('query_pre_attn_scalar', 256) ** -0.5,
    logit_cap=config.get('attn_logit_softcapping'),
  )
  return _decoder(
    config,
    config_settings.with_windows(
      attention, windows, config_settings.rope(window_rope)
    ),
    config.get('hidden_activation', _ACTIVATION),
    norms=layer_norms.INPUTS_AND_OUTPUTS,
    logit_cap=config.get('final_logit_softcapping'),
  )


def _attention(config: Json, **settings: Any) -> RotaryAttention:
  """Returns an attention by the settings that all versions share.

  Raises:
    ValueError: It is not causal.
  """
  if config.get('use_bidirectional_attention'):
    raise ValueError(
      'use_bidirectional_attention in config.json must be false, got true; set'
      ' model_type=BIDIRECTIONAL on a model of your own'
    )
  has_bias = config.get('attention_bias', False)
  return config_settings.rotary_attention(
    {'head_dim': 256, **config},
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    **settings,
  )


def _decoder(
  config: Json,
  attentions: Sequence[Mixer],
  activation: str,
  **settings: Any,
) -> RotaryDecoder:
  """Returns a decoder by the settings that all versions share."""
  return config_settings.rotary_decoder(
    {'tie_word_embeddings': True, **config},
    attentions,
    feed_forward=config_settings.feed_forward(config, activation=activation),
    scales_embedding=True,
    has_offset_norms=True,
    **settings,
  )
