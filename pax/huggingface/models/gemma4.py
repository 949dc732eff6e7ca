# SPDX-License-Identifier: Apache-2.0
"""Gemma 4: layers without a window have other heads; some models have experts.

Published folders are of models of images and texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pax.huggingface.layers import layer_norms
from pax.huggingface.layers.gemma4_experts import Gemma4Experts
from pax.huggingface.layers.mixture_of_experts import MixtureOfExperts
from pax.huggingface.layers.rotary_attention import RotaryAttention
from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.models import config_settings
from pax.huggingface.models.config_settings import Json

_DEFAULTS = {
  'num_key_value_heads': 4,
  'head_dim': 256,
  'global_head_dim': 512,
  'tie_word_embeddings': True,
  'hidden_activation': 'gelu_pytorch_tanh',
  'sliding_window': 512,
  'hidden_size_per_layer_input': 256,
  'rope_parameters': {
    'full_attention': {
      'rope_type': 'proportional',
      'rope_theta': 1_000_000.0,
      'partial_rotary_factor': 0.25,
    },
    'sliding_attention': {'rope_type': 'default', 'rope_theta': 10_000.0},
  },
}
# Settings of a layer of its own.
_LAYER_SETTINGS = ('head_dim', 'num_key_value_heads')
_FULL = 'full_attention'


def read_gemma4_unified(config: Json) -> RotaryDecoder:
  """Returns the settings of a language model without encoders of images.

  Raises:
    ValueError: A setting is not supported.
  """
  return read_gemma4(
    {'sliding_window': 1024, 'hidden_size_per_layer_input': 0, **config}
  )


def read_gemma4(config: Json) -> RotaryDecoder:
  """Returns the settings of the language model of a Gemma 4.

  Raises:
    ValueError: A setting is not supported.
  """
  config = _with_defaults(config)
  _check_settings(config)
  kinds = _layer_types(config)
  windows = config_settings.windows(config, kinds, config['sliding_window'])
  return config_settings.rotary_decoder(
    config,
    [
      _attention({**config, **settings}, kind, window)
      for settings, kind, window in zip(
        _settings_of_layers(config, kinds), kinds, windows, strict=True
      )
    ],
    feed_forward=config_settings.feed_forward(
      config, activation=config['hidden_activation']
    ),
    experts=_experts(config) if config.get('enable_moe_block') else None,
    norms=layer_norms.INPUTS_AND_OUTPUTS,
    scales_embedding=True,
    has_layer_scales=True,
    logit_cap=config.get('final_logit_softcapping'),
  )


def _with_defaults(config: Json) -> dict[str, Any]:
  """Returns the settings with those that are absent or null by default."""
  given = {name: x for name, x in config.items() if x is not None}
  return {**_DEFAULTS, **given}


def _check_settings(config: Json) -> None:
  """Checks settings that have no layer in praxis.

  Raises:
    ValueError: The model has such a setting.
  """
  for name, reason in (
    ('hidden_size_per_layer_input', 'embeddings of each layer'),
    ('num_kv_shared_layers', 'layers with the keys of other layers'),
  ):
    if config.get(name):
      raise ValueError(
        f'{name} in config.json of a gemma4 must be 0, got {config[name]};'
        f' {reason}, as in E2B and E4B, have no layer in praxis'
      )
  # Texts are causal in models whose images are not.
  if config.get('use_bidirectional_attention') not in (None, 'vision'):
    raise ValueError(
      "use_bidirectional_attention in config.json must be null or 'vision', got"
      f' {config["use_bidirectional_attention"]!r}; set'
      ' model_type=BIDIRECTIONAL on a model of your own'
    )


def _layer_types(config: Json) -> list[str]:
  """Returns the type of each layer; the last one has no window."""
  num_layers = config_settings.size(config, 'num_hidden_layers')
  kinds = config.get('layer_types') or [
    'sliding_attention' if (i + 1) % 6 else _FULL for i in range(num_layers)
  ]
  return [*kinds[:-1], _FULL]


def _settings_of_layers(config: Json, kinds: Sequence[str]) -> list[Json]:
  """Returns the settings that each layer has of its own.

  Newer files have them by the index of the layer.

  Raises:
    ValueError: There are others.
  """
  by_index = config.get('per_layer_config')
  if by_index is None:
    full: dict[str, Any] = {'head_dim': config['global_head_dim']}
    heads = config.get('num_global_key_value_heads')
    if config.get('attention_k_eq_v') and heads is not None:
      full['num_key_value_heads'] = heads
    return [full if kind == _FULL else {} for kind in kinds]
  settings = [by_index.get(str(i), {}) for i in range(len(kinds))]
  if unknown := {x for of_layer in settings for x in of_layer} - {
    *_LAYER_SETTINGS
  }:
    raise ValueError(
      f'per_layer_config in config.json must have {list(_LAYER_SETTINGS)} only,'
      f' got {sorted(unknown)}; no other setting differs between the layers of'
      ' a gemma4'
    )
  return settings


def _attention(config: Json, kind: str, window: int | None) -> RotaryAttention:
  """Returns the attention of a layer.

  Args:
    config: Contents of config.json, with the settings of the layer.
    kind: Its type.
    window: Its window.

  Raises:
    ValueError: There are no settings of its rotation.
  """
  rope = config['rope_parameters'].get(kind)
  if not isinstance(rope, Mapping):
    raise ValueError(
      f'rope_parameters in config.json must have an object {kind}, got'
      f' {rope!r}; use the file that save_pretrained writes'
    )
  has_bias = config.get('attention_bias', False)
  return config_settings.rotary_attention(
    {**config, 'rope_parameters': rope},
    window=window,
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    has_head_norms=True,
    has_value_norms=True,
    has_keys_as_values=kind == _FULL and config.get('attention_k_eq_v', False),
    query_scale=1.0,
  )


def _experts(config: Json) -> MixtureOfExperts:
  num_layers = config_settings.size(config, 'num_hidden_layers')
  return config_settings.experts(
    {
      # Transformers adds no loss.
      'router_aux_loss_coef': 0.0,
      **config,
      'num_experts_per_tok': config['top_k_experts'],
    },
    Gemma4Experts,
    hidden_dims=config_settings.size(config, 'moe_intermediate_size'),
    layers=tuple(range(num_layers)),
    shared_hidden_dims=config_settings.size(config, 'intermediate_size'),
  )
