# SPDX-License-Identifier: Apache-2.0
"""Gemma 4: layers without a window have other heads; some models have experts.

In E2B and E4B the last layers share keys and values of earlier ones, and each
layer has an input of its own. Published folders are of models of images and
texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pax.huggingface.layers import layer_norms
from pax.huggingface.layers.gemma4_experts import Gemma4Experts
from pax.huggingface.layers.layer_inputs import LayerInputs
from pax.huggingface.layers.mixture_of_experts import MixtureOfExperts
from pax.huggingface.layers.rotary_attention import RotaryAttention
from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.layers.shared_key_attention import (
  KeySourceAttention,
  SharedKeyAttention,
)
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
  'vocab_size_per_layer_input': 262_144,
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
  sources = _key_sources(config, kinds)
  activation = config['hidden_activation']
  return config_settings.rotary_decoder(
    config,
    _attentions(config, kinds, sources),
    feed_forward=config_settings.feed_forward(config, activation=activation),
    hidden_dims_of_layers={
      i: 2 * config['intermediate_size']
      for i, source in enumerate(sources)
      if source is not None and config.get('use_double_wide_mlp')
    },
    layer_inputs=_layer_inputs(config),
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
  if config.get('enable_moe_block') and config.get('use_double_wide_mlp'):
    raise ValueError(
      'use_double_wide_mlp in config.json of a gemma4 must be false with'
      ' enable_moe_block, got true; shared experts of all layers have one width'
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


def _key_sources(config: Json, kinds: Sequence[str]) -> list[int | None]:
  """Returns for each layer the index of the one whose keys it shares.

  Raises:
    ValueError: There is no layer of its type with keys.
  """
  num_shared = config.get('num_kv_shared_layers') or 0
  first = len(kinds) - num_shared
  last_of_kind = {kind: i for i, kind in enumerate(kinds[: max(first, 0)])}
  if missing := {*kinds} - last_of_kind.keys():
    raise ValueError(
      'num_kv_shared_layers in config.json must leave a layer of each type'
      f' before the last {num_shared} of {len(kinds)}, got none of'
      f' {sorted(missing)}; use the file that save_pretrained writes'
    )
  return [None if i < first else last_of_kind[x] for i, x in enumerate(kinds)]


def _layer_inputs(config: Json) -> LayerInputs | None:
  """Returns the inputs of each layer, if they have any.

  Raises:
    ValueError: They have another vocabulary.
  """
  if not config['hidden_size_per_layer_input']:
    return None
  vocab_size = config['vocab_size_per_layer_input']
  if vocab_size != config['vocab_size']:
    raise ValueError(
      'vocab_size_per_layer_input in config.json must be vocab_size='
      f'{config["vocab_size"]}, got {vocab_size}; use the file of the model'
    )
  return LayerInputs(
    num_layers=config_settings.size(config, 'num_hidden_layers'),
    dims=config_settings.size(config, 'hidden_size_per_layer_input'),
    activation=config['hidden_activation'],
  )


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


def _attentions(
  config: Json, kinds: Sequence[str], sources: Sequence[int | None]
) -> list[RotaryAttention]:
  """Returns the attentions of layers.

  Args:
    config: Contents of config.json.
    kinds: Their types.
    sources: The layers whose keys they share; None for their own.
  """
  windows = config_settings.windows(config, kinds, config['sliding_window'])
  settings = _settings_of_layers(config, kinds)
  attentions = []
  for i, (kind, window, source) in enumerate(
    zip(kinds, windows, sources, strict=True)
  ):
    layer_class = RotaryAttention
    if source is not None:
      layer_class = SharedKeyAttention
    elif i in sources:
      layer_class = KeySourceAttention
    attentions.append(
      _attention(
        {**config, **settings[i]},
        kind,
        layer_class,
        window=window,
        key_source=source,
        has_value_norms=source is None,
      )
    )
  return attentions


def _attention(
  config: Json,
  kind: str,
  layer_class: type[RotaryAttention],
  **fields: Any,
) -> RotaryAttention:
  """Returns the attention of a layer.

  Args:
    config: Contents of config.json, with the settings of the layer.
    kind: Its type.
    layer_class: Class of the attention.
    **fields: Those that depend on the place of the layer.

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
    layer_class,
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    has_head_norms=True,
    has_keys_as_values=kind == _FULL and config.get('attention_k_eq_v', False),
    query_scale=1.0,
    **fields,
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
