# SPDX-License-Identifier: Apache-2.0
"""Ministral 3: a Mistral whose queries grow with the position."""

from __future__ import annotations

from pax.huggingface import config_settings
from pax.huggingface.config_settings import Json
from pax.huggingface.query_temperatures import QueryTemperature
from pax.huggingface.rotary_decoder import RotaryDecoder

_DEFAULTS = {
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


def read_ministral3(config: Json) -> RotaryDecoder:
  """Returns the settings of a Ministral 3.

  Raises:
    ValueError: A setting is not supported.
  """
  config = {**_DEFAULTS, **config}
  rope = config_settings.rope(config)
  rope.pop('max_position_embeddings', None)
  temperature = None
  if log_scale := rope.pop('llama_4_scaling_beta', 0.0):
    temperature = QueryTemperature(
      log_scale=log_scale,
      interval=config_settings.size(rope, 'original_max_position_embeddings'),
      offset=0,
      has_rotary=True,
    )
  num_layers = config_settings.size(config, 'num_hidden_layers')
  return config_settings.rotary_decoder(
    {**config, 'rope_scaling': None, 'rope_parameters': rope},
    activation=config.get('hidden_act', 'silu'),
    windows=(config.get('sliding_window'),) * num_layers,
    query_temperature=temperature,
  )
