# SPDX-License-Identifier: Apache-2.0
"""Qwen3-Next: Gated DeltaNet in most layers, and gated attention in others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pax.huggingface.layers.delta_net import DeltaNet
from pax.huggingface.layers.mixers import Mixer
from pax.huggingface.layers.mixture_of_experts import (
  ExpertTensors,
  MixtureOfExperts,
)
from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.models import config_settings
from pax.huggingface.models.config_settings import Json

_DEFAULTS = {
  'num_key_value_heads': 2,
  'head_dim': 256,
  'partial_rotary_factor': 0.25,
  'num_experts': 512,
  'num_experts_per_tok': 10,
  'moe_intermediate_size': 512,
  'shared_expert_intermediate_size': 512,
  'linear_num_key_heads': 16,
  'linear_num_value_heads': 32,
  'linear_key_head_dim': 128,
  'linear_value_head_dim': 128,
  'linear_conv_kernel_dim': 4,
  'full_attention_interval': 4,
}
_KINDS = ('linear_attention', 'full_attention')


def read_qwen3_next(config: Json) -> RotaryDecoder:
  """Returns the settings of a Qwen3-Next.

  Raises:
    ValueError: A setting is not supported.
  """
  config = {**_DEFAULTS, **config}
  return decoder(
    config,
    experts=experts(config, config_settings.expert_layers(config)),
  )


def decoder(
  config: Json, *, has_tensor_per_output: bool = False, **settings: Any
) -> RotaryDecoder:
  """Returns a decoder whose layers are Gated DeltaNets or gated attention.

  Args:
    config: Contents of config.json.
    has_tensor_per_output: See DeltaNet.
    **settings: Other fields.

  Raises:
    ValueError: A setting is not supported.
  """
  if (activation := config.get('hidden_act', 'silu')) != 'silu':
    raise ValueError(
      f"hidden_act in config.json must be 'silu', got {activation!r}; the"
      ' convolutions of Gated DeltaNet have no other activation'
    )
  return config_settings.rotary_decoder(
    config,
    _mixers(config, has_tensor_per_output=has_tensor_per_output),
    has_offset_norms=True,
    **settings,
  )


def _mixers(config: Json, *, has_tensor_per_output: bool) -> list[Mixer]:
  """Returns the Gated DeltaNet or the gated attention of each layer."""
  has_bias = config.get('attention_bias', False)
  attention = config_settings.rotary_attention(
    config,
    has_partial_rotary=True,
    has_qkv_bias=has_bias,
    has_output_bias=has_bias,
    has_head_norms=True,
    has_output_gate=True,
  )
  size = config_settings.size
  delta_net = DeltaNet(
    num_key_heads=size(config, 'linear_num_key_heads'),
    num_value_heads=size(config, 'linear_num_value_heads'),
    key_dim=size(config, 'linear_key_head_dim'),
    value_dim=size(config, 'linear_value_head_dim'),
    kernel_size=size(config, 'linear_conv_kernel_dim'),
    has_tensor_per_output=has_tensor_per_output,
  )
  kinds = _layer_types(config)
  return [delta_net if kind == _KINDS[0] else attention for kind in kinds]


def experts(
  config: Json, layers: tuple[int, ...], **tensors: Any
) -> MixtureOfExperts:
  """Returns the mixtures of layers.

  Args:
    config: Contents of config.json.
    layers: Indices of the layers with experts.
    **tensors: Fields of ExpertTensors that differ.
  """
  size = config_settings.size
  names = {'gate': 'gate_proj', 'up': 'up_proj', 'down': 'down_proj'}
  return config_settings.experts(
    config,
    hidden_dims=size(config, 'moe_intermediate_size'),
    layers=layers,
    normalize_gates=config.get('norm_topk_prob', True),
    shared_hidden_dims=size(config, 'shared_expert_intermediate_size'),
    tensors=ExpertTensors(
      mixture='mlp',
      shared='shared_expert',
      shared_gate='shared_expert_gate',
      **{**names, **tensors},
    ),
  )


def _layer_types(config: Json) -> Sequence[str]:
  """Returns the type of each layer, one of _KINDS.

  Raises:
    ValueError: `layer_types` has other types, or not one for each layer.
  """
  num_layers = config_settings.size(config, 'num_hidden_layers')
  kinds: Sequence[str] | None = config.get('layer_types')
  if kinds is None:
    interval = config_settings.size(config, 'full_attention_interval')
    kinds = [_KINDS[(i + 1) % interval == 0] for i in range(num_layers)]
  config_settings.check_layer_types(kinds, _KINDS, num_layers)
  return kinds
