# SPDX-License-Identifier: Apache-2.0
"""Granite 3 without experts, and Granite 4 with Mamba-2 in most layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pax.huggingface.layers import granite_experts, mamba
from pax.huggingface.layers.granite_experts import GraniteExperts
from pax.huggingface.layers.mixers import Mixer
from pax.huggingface.layers.rotary_attention import RotaryAttention
from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.models import config_settings
from pax.huggingface.models.config_settings import Json

_HYBRID_DEFAULTS = {
  'hidden_act': 'silu',
  'position_embedding_type': None,
  'num_local_experts': 8,
  'num_experts_per_tok': 2,
  'shared_intermediate_size': 1024,
  'mamba_n_heads': 128,
  'mamba_n_groups': 1,
  'mamba_d_state': 256,
  'mamba_d_head': 'auto',
  'mamba_d_conv': 4,
  'mamba_expand': 2,
  'mamba_conv_bias': True,
  'mamba_proj_bias': False,
}
_KINDS = ('mamba', 'attention')
_NEW_KINDS = {'linear_attention': 'mamba', 'full_attention': 'attention'}


def read_granite(config: Json) -> RotaryDecoder:
  """Returns the settings of a Granite 3 without experts.

  Raises:
    ValueError: A setting is not supported.
  """
  return _decoder(
    config,
    config_settings.of_all_layers(config, _attention(config)),
    feed_forward=config_settings.feed_forward(
      config, has_bias=config.get('mlp_bias', False)
    ),
  )


def read_granite_hybrid(config: Json) -> RotaryDecoder:
  """Returns the settings of a Granite 4, with or without experts.

  Raises:
    ValueError: A setting is not supported.
  """
  config = {**_HYBRID_DEFAULTS, **config}
  _check_hybrid(config)
  num_layers = config_settings.size(config, 'num_hidden_layers')
  shared_hidden_dims = config_settings.size(config, 'shared_intermediate_size')
  experts = None
  if config['num_local_experts']:
    experts = config_settings.experts(
      config,
      GraniteExperts,
      hidden_dims=config_settings.size(config, 'intermediate_size'),
      layers=tuple(range(num_layers)),
      shared_hidden_dims=shared_hidden_dims,
    )
  return _decoder(
    config,
    _hybrid_mixers(config),
    feed_forward=config_settings.feed_forward(
      {**config, 'intermediate_size': shared_hidden_dims},
      tensors=granite_experts.SHARED,
      fused_tensors=granite_experts.PROJECTIONS,
    ),
    experts=experts,
  )


def _check_hybrid(config: Json) -> None:
  """Checks settings that have no layer in praxis.

  Raises:
    ValueError: The model has such a setting.
  """
  for name, supported in (
    ('mamba_proj_bias', (False,)),
    ('hidden_act', ('silu',)),
    ('position_embedding_type', (None, 'nope', 'rope')),
  ):
    if config[name] not in supported:
      raise ValueError(
        f'{name} in config.json of a granitemoehybrid must be one of'
        f' {list(supported)}, got {config[name]!r}; praxis has no layer with it'
      )


def _hybrid_mixers(config: Json) -> list[Mixer]:
  """Returns the Mamba-2 or the attention of each layer.

  Raises:
    ValueError: The sizes of heads contradict each other.
  """
  size = config_settings.size
  num_heads = size(config, 'mamba_n_heads')
  inner_dims = config['mamba_expand'] * size(config, 'hidden_size')
  head_dim = config['mamba_d_head']
  if head_dim == 'auto':
    head_dim = inner_dims // num_heads
  if num_heads * head_dim != inner_dims:
    raise ValueError(
      f'mamba_d_head in config.json must be {inner_dims} / {num_heads},'
      ' mamba_expand * hidden_size / mamba_n_heads, got'
      f' {config["mamba_d_head"]!r}; use the file that save_pretrained writes'
    )
  state_space = mamba.Mamba(
    num_heads=num_heads,
    head_dim=head_dim,
    num_groups=size(config, 'mamba_n_groups'),
    state_dim=size(config, 'mamba_d_state'),
    kernel_size=size(config, 'mamba_d_conv'),
    has_conv_bias=config['mamba_conv_bias'],
    time_step_limits=mamba.read_time_step_limits(config),
  )
  attention = _attention(config)
  if config['position_embedding_type'] != 'rope':
    attention = dataclasses.replace(attention, rope=None)
  kinds = _layer_types(config)
  return [state_space if kind == _KINDS[0] else attention for kind in kinds]


def _layer_types(config: Json) -> Sequence[str]:
  """Returns the type of each layer, one of _KINDS.

  Raises:
    ValueError: `layer_types` has other types, or not one for each layer.
  """
  num_layers = config_settings.size(config, 'num_hidden_layers')
  kinds = config.get('layer_types') or _KINDS[:1] * num_layers
  # Those of newer files.
  kinds = [_NEW_KINDS.get(kind, kind) for kind in kinds]
  config_settings.check_layer_types(kinds, _KINDS, num_layers)
  return kinds


def _attention(config: Json) -> RotaryAttention:
  has_bias = config.get('attention_bias', False)
  return config_settings.rotary_attention(
    config,
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    query_scale=_factor(config, 'attention_multiplier'),
  )


def _decoder(
  config: Json, mixers: Sequence[Mixer], **settings: Any
) -> RotaryDecoder:
  """Returns a decoder with the factors of the family.

  Args:
    config: Contents of config.json.
    mixers: That of each layer.
    **settings: Other fields.
  """
  return config_settings.rotary_decoder(
    config,
    mixers,
    embedding_scale=_factor(config, 'embedding_multiplier'),
    residual_scale=_factor(config, 'residual_multiplier'),
    head_scale=1 / _factor(config, 'logits_scaling'),
    **settings,
  )


def _factor(config: Json, name: str) -> float:
  """Returns a factor, 1 if it is absent.

  Raises:
    ValueError: It is not positive.
  """
  value = config.get(name, 1.0)
  if type(value) not in (int, float) or value <= 0:
    raise ValueError(
      f'{name} in config.json must be a positive number, got {value!r}; use the'
      ' file that save_pretrained writes'
    )
  return float(value)
