# SPDX-License-Identifier: Apache-2.0
"""Nemotron-H and Nemotron 3: blocks of Mamba-2, attention, MLPs and experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pax.huggingface.layers import mamba
from pax.huggingface.layers.block_decoder import BlockDecoder, Blocks
from pax.huggingface.layers.feed_forward import FeedForward
from pax.huggingface.layers.mixers import Mixer
from pax.huggingface.layers.mixture_of_experts import (
  ExpertTensors,
  MixtureOfExperts,
)
from pax.huggingface.models import config_settings, deepseek
from pax.huggingface.models.config_settings import Json

_DEFAULTS = {
  'head_dim': 128,
  'intermediate_size': 21504,
  'mlp_hidden_act': 'relu2',
  'mlp_bias': False,
  'ssm_state_size': 128,
  'mamba_num_heads': 128,
  'mamba_head_dim': 64,
  'mamba_hidden_act': 'silu',
  'mamba_proj_bias': False,
  'n_groups': 8,
  'conv_kernel': 4,
  'use_bias': False,
  'use_conv_bias': True,
  'layer_norm_epsilon': 1e-5,
  'sliding_window': None,
  'n_routed_experts': 8,
  'num_experts_per_tok': 2,
  'moe_intermediate_size': 7688,
  'moe_shared_expert_intermediate_size': 7688,
  'moe_latent_size': None,
  'routed_scaling_factor': 1.0,
  'n_group': 1,
  'topk_group': 1,
}
# Types of blocks by their characters in `hybrid_override_pattern`.
_KINDS = {
  'M': 'linear_attention',
  '*': 'full_attention',
  '-': 'mlp',
  'E': 'moe',
}
_MIXERS = ('linear_attention', 'full_attention')
# Names in older files.
_OLD_KINDS = {'mamba': 'linear_attention', 'attention': 'full_attention'}


def read_nemotron_h(config: Json) -> BlockDecoder:
  """Returns the settings of a model.

  Raises:
    ValueError: A setting is not supported.
  """
  config = {**_DEFAULTS, **config}
  _check(config)
  kinds = _block_types(config)
  layers = Blocks.of_layers([kind in _MIXERS for kind in kinds])
  of_experts = tuple(
    i
    for i, blocks in enumerate(layers)
    if blocks.feed_forward is not None and kinds[blocks.feed_forward] == 'moe'
  )
  return BlockDecoder(
    vocab_size=config_settings.size(config, 'vocab_size'),
    model_dims=config_settings.size(config, 'hidden_size'),
    norm_epsilon=config['layer_norm_epsilon'],
    is_tied=config.get('tie_word_embeddings', False),
    mixers=_mixers(config, [kinds[blocks.mixer] for blocks in layers]),
    feed_forward=FeedForward(
      hidden_dims=config_settings.size(config, 'intermediate_size'),
      activation=config['mlp_hidden_act'],
      has_gates=False,
      has_bias=config['mlp_bias'],
      tensors='mixer',
    ),
    experts=_experts(config, of_experts) if of_experts else None,
    blocks=tuple(layers),
  )


def _check(config: Json) -> None:
  """Checks settings that have no layer in praxis.

  Raises:
    ValueError: The model has such a setting.
  """
  for name, supported in (
    ('mamba_hidden_act', 'silu'),
    ('mamba_proj_bias', False),
    ('use_bias', False),
    ('sliding_window', None),
    # Nemotron 3 Super.
    ('moe_latent_size', None),
  ):
    if config[name] != supported:
      raise ValueError(
        f'{name} in config.json of a nemotron_h must be {supported!r}, got'
        f' {config[name]!r}; praxis has no layer with it'
      )


def _block_types(config: Json) -> list[str]:
  """Returns the type of each block.

  Raises:
    ValueError: There are none, or others than in _KINDS.
  """
  kinds: Sequence[str] | None = config.get('layers_block_type')
  if kinds is None:
    pattern = config['hybrid_override_pattern']
    kinds = [_KINDS.get(character, character) for character in pattern]
  kinds = [_OLD_KINDS.get(kind, kind) for kind in kinds]
  if not kinds or not {*kinds} <= {*_KINDS.values()}:
    raise ValueError(
      'layers_block_type in config.json must be a list of'
      f' {sorted(_KINDS.values())}, got {kinds}; use the file that'
      ' save_pretrained writes'
    )
  return kinds


def _mixers(config: Json, kinds: Sequence[str]) -> tuple[Mixer, ...]:
  """Returns the Mamba-2 or the attention of each layer."""
  size = config_settings.size
  has_bias = config.get('attention_bias', False)
  attention = config_settings.rotary_attention(
    config, has_qkv_bias=has_bias, has_output_bias=has_bias
  )
  by_kind: dict[str, Mixer] = {
    'linear_attention': mamba.Mamba(
      num_heads=size(config, 'mamba_num_heads'),
      head_dim=size(config, 'mamba_head_dim'),
      num_groups=size(config, 'n_groups'),
      state_dim=size(config, 'ssm_state_size'),
      kernel_size=size(config, 'conv_kernel'),
      has_conv_bias=config['use_conv_bias'],
      time_step_limits=mamba.read_time_step_limits(config),
    ),
    'full_attention': dataclasses.replace(attention, rope=None),
  }
  return tuple(by_kind[kind] for kind in kinds)


def _experts(config: Json, layers: tuple[int, ...]) -> MixtureOfExperts:
  size = config_settings.size
  return MixtureOfExperts(
    num_experts=size(config, 'n_routed_experts'),
    experts_per_token=size(config, 'num_experts_per_tok'),
    hidden_dims=size(config, 'moe_intermediate_size'),
    layers=layers,
    normalize_gates=config.get('norm_topk_prob', True),
    # Transformers adds none.
    load_balance_loss_weight=0.0,
    shared_hidden_dims=size(config, 'moe_shared_expert_intermediate_size'),
    shared_has_bias=config['mlp_bias'],
    routing=deepseek.v3_routing(config),
    tensors=ExpertTensors(
      mixture='mixer',
      gate=None,
      up='up_proj',
      down='down_proj',
      shared='shared_experts',
      choice_bias=deepseek.CHOICE_BIAS,
    ),
  )
