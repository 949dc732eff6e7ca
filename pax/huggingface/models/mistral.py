# SPDX-License-Identifier: Apache-2.0
"""Mistral, Mixtral and Ministral 3."""

from __future__ import annotations

from pax.huggingface.layers.mixture_of_experts import ExpertTensors
from pax.huggingface.layers.query_temperatures import QueryTemperature
from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.models import config_settings
from pax.huggingface.models.config_settings import Json

_MINISTRAL_DEFAULTS = {
  'head_dim': 128,
  'num_key_value_heads': 8,
  'rms_norm_eps': 1e-5,
  'rope_parameters': {
    'rope_type': 'yarn',
    'rope_theta': 1_000_000.0,
    'factor': 16.0,
    'original_max_position_embeddings': 16_384,
    'beta_fast': 32.0,
    'beta_slow': 1.0,
    'mscale': 1.0,
    'mscale_all_dim': 1.0,
    'llama_4_scaling_beta': 0.1,
  },
}


def read_mistral(config: Json) -> RotaryDecoder:
  """Returns the settings of a Mistral.

  Raises:
    ValueError: A setting is not supported.
  """
  window = config.get('sliding_window', 4096)
  attention = config_settings.rotary_attention(config, window=window)
  return config_settings.rotary_decoder(
    config, config_settings.of_all_layers(config, attention)
  )


def read_mixtral(config: Json) -> RotaryDecoder:
  """Returns the settings of a Mixtral.

  Raises:
    ValueError: A setting is not supported.
  """
  if config.get('router_jitter_noise'):
    raise ValueError(
      'router_jitter_noise in config.json must be 0, got'
      f' {config["router_jitter_noise"]}; no layer of praxis adds it'
    )
  config = {
    'num_key_value_heads': 8,
    'rms_norm_eps': 1e-5,
    'num_local_experts': 8,
    'num_experts_per_tok': 2,
    **config,
  }
  attention = config_settings.rotary_attention(
    config, window=config.get('sliding_window')
  )
  num_layers = config_settings.size(config, 'num_hidden_layers')
  return config_settings.rotary_decoder(
    config,
    config_settings.of_all_layers(config, attention),
    experts=config_settings.experts(
      config,
      hidden_dims=config_settings.size(config, 'intermediate_size'),
      layers=tuple(range(num_layers)),
      normalize_gates=True,
      tensors=ExpertTensors(
        mixture='block_sparse_moe', gate='w1', up='w3', down='w2'
      ),
    ),
  )


def read_ministral3(config: Json) -> RotaryDecoder:
  """Returns the settings of a Ministral 3.

  Raises:
    ValueError: A setting is not supported.
  """
  config = {**_MINISTRAL_DEFAULTS, **config}
  rope = config_settings.rope(config)
  rope.pop('max_position_embeddings', None)
  temperature = None
  if log_scale := rope.pop('llama_4_scaling_beta', 0.0):
    temperature = QueryTemperature(
      log_scale=log_scale,
      interval=config_settings.size(rope, 'original_max_position_embeddings'),
      offset=0,
    )
  attention = config_settings.rotary_attention(
    {**config, 'rope_scaling': None, 'rope_parameters': rope},
    window=config.get('sliding_window'),
    query_temperature=temperature,
  )
  return config_settings.rotary_decoder(
    config, config_settings.of_all_layers(config, attention)
  )
