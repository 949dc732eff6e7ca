# SPDX-License-Identifier: Apache-2.0
"""EXAONE 4."""

from __future__ import annotations

from pax.huggingface.layers import layer_norms
from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.models import config_settings
from pax.huggingface.models.config_settings import Json


def read_exaone4(config: Json) -> RotaryDecoder:
  """Returns the settings of an EXAONE 4.

  Raises:
    ValueError: A setting is not supported.
  """
  config = {'num_key_value_heads': 32, 'rms_norm_eps': 1e-5, **config}
  window = config.get('sliding_window', 4096)
  kinds = config.get('layer_types') or _layer_types(config)
  attentions = config_settings.with_windows(
    config_settings.rotary_attention(config, has_head_norms=True),
    config_settings.windows(config, kinds, window),
  )
  # All layers of a model without windows have positions.
  if window is not None:
    rotary_layers = [kind == 'sliding_attention' for kind in kinds]
    attentions = config_settings.with_rotation_in(rotary_layers, attentions)
  return config_settings.rotary_decoder(
    config, attentions, norms=layer_norms.OUTPUTS
  )


def _layer_types(config: Json) -> list[str]:
  """Returns the types by `sliding_window_pattern`.

  It is the period of layers without a window, or has a letter for each layer of
  a period, L with a window and G without; the last layer has none.

  Raises:
    ValueError: It is something else.
  """
  num_layers = config_settings.size(config, 'num_hidden_layers')
  if config.get('sliding_window', 4096) is None:
    return ['full_attention'] * num_layers
  pattern = config.get('sliding_window_pattern', 4)
  if isinstance(pattern, int) and pattern > 0:
    pattern = 'L' * (pattern - 1) + 'G'
  if not isinstance(pattern, str) or not pattern or {*pattern} - {*'LG'}:
    raise ValueError(
      'sliding_window_pattern in config.json must be a period of layers, or'
      f" letters such as 'LLLG', got {pattern!r}; use the file that"
      ' save_pretrained writes'
    )
  is_local = [pattern[i % len(pattern)] == 'L' for i in range(num_layers)]
  is_local[-1] = False
  return [
    'sliding_attention' if local else 'full_attention' for local in is_local
  ]
