# SPDX-License-Identifier: Apache-2.0
"""OLMo 2 and 3, which normalize outputs of blocks, and queries and keys."""

from __future__ import annotations

import dataclasses

from pax.huggingface import config_settings, layer_norms
from pax.huggingface.config_settings import Json
from pax.huggingface.rotary_decoder import RotaryDecoder


def read_olmo2(config: Json) -> RotaryDecoder:
  """Returns the settings of an OLMo 2.

  Raises:
    ValueError: A setting is not supported.
  """
  has_bias = config.get('attention_bias', False)
  return config_settings.rotary_decoder(
    {'rms_norm_eps': 1e-5, **config},
    activation=config.get('hidden_act', 'silu'),
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    has_projection_norms=True,
    norms=layer_norms.OUTPUTS,
  )


def read_olmo3(config: Json) -> RotaryDecoder:
  """Returns the settings of an OLMo 3, where most layers have a window.

  Raises:
    ValueError: A setting is not supported.
  """
  theta = config.get('rope_theta', 500_000.0)
  # Layers with a window have no scaling.
  rope, window_rope = config_settings.ropes_by_layer_type(
    config, {'full_attention': theta, 'sliding_attention': theta}
  )
  kinds = config.get('layer_types') or [
    'sliding_attention' if (i + 1) % 4 else 'full_attention'
    for i in range(config_settings.size(config, 'num_hidden_layers'))
  ]
  return dataclasses.replace(
    read_olmo2({**config, **rope}),
    windows=config_settings.windows(kinds, config.get('sliding_window', 4096)),
    window_rope=config_settings.rope(window_rope),
  )
