# SPDX-License-Identifier: Apache-2.0
"""OLMo 2 and 3."""

from __future__ import annotations

from collections.abc import Sequence

from pax.huggingface.layers import layer_norms
from pax.huggingface.layers.mixers import Mixer
from pax.huggingface.layers.rotary_attention import RotaryAttention
from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.models import config_settings
from pax.huggingface.models.config_settings import Json


def read_olmo2(config: Json) -> RotaryDecoder:
  """Returns the settings of an OLMo 2.

  Raises:
    ValueError: A setting is not supported.
  """
  attention = _attention(config)
  return _decoder(config, config_settings.of_all_layers(config, attention))


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
  windows = config_settings.windows(
    config, kinds, config.get('sliding_window', 4096)
  )
  attention = _attention({**config, **rope})
  return _decoder(
    config,
    config_settings.with_windows(
      attention, windows, window_rope=config_settings.rope(window_rope)
    ),
  )


def _attention(config: Json) -> RotaryAttention:
  has_bias = config.get('attention_bias', False)
  return config_settings.rotary_attention(
    config,
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    has_projection_norms=True,
  )


def _decoder(config: Json, attentions: Sequence[Mixer]) -> RotaryDecoder:
  return config_settings.rotary_decoder(
    {'rms_norm_eps': 1e-5, **config}, attentions, norms=layer_norms.OUTPUTS
  )
