# SPDX-License-Identifier: Apache-2.0
"""DeepSeek V2 and V3: latent attention, routed and shared experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pax.huggingface.layers.latent_attention import LatentAttention
from pax.huggingface.layers.mixture_of_experts import (
  ExpertTensors,
  MixtureOfExperts,
)
from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.layers.rotary_embeddings import yarn_scale
from pax.huggingface.models import config_settings
from pax.huggingface.models.config_settings import Json

# Tensor of the biases of the choice of experts, in the mixture.
CHOICE_BIAS = 'gate.e_score_correction_bias'


def read_deepseek_v2(config: Json) -> RotaryDecoder:
  """Returns a model of type deepseek_v2.

  Raises:
    ValueError: A setting is not supported.
  """
  if config.get('norm_topk_prob'):
    raise ValueError(
      'norm_topk_prob in config.json of a deepseek_v2 must be false, got true;'
      ' transformers does not normalize its gates'
    )
  config = {'n_shared_experts': 2, **config, 'norm_topk_prob': False}
  routing: dict[str, Any] = {}
  method = config.get('topk_method', 'greedy')
  if method == 'group_limited_greedy':
    routing = _expert_groups(config, experts_per_group_score=1)
  elif method != 'greedy':
    raise ValueError(
      "topk_method in config.json must be 'greedy' or 'group_limited_greedy',"
      f' got {method!r}'
    )
  config = {'first_k_dense_replace': 0, 'n_routed_experts': 64, **config}
  routing['gate_scale'] = config.get('routed_scaling_factor', 1.0)
  return _decoder(config, _experts(config, routing))


def read_deepseek_v3(config: Json) -> RotaryDecoder:
  """Returns a model of type deepseek_v3."""
  config = {
    'n_group': 8,
    'topk_group': 4,
    'num_experts_per_tok': 8,
    'first_k_dense_replace': 3,
    'n_routed_experts': 256,
    'routed_scaling_factor': 2.5,
    **config,
  }
  return _decoder(config, v3_experts(config))


def v3_experts(config: Json) -> MixtureOfExperts:
  """Returns the mixtures of a DeepSeek-V3.

  Args:
    config: Contents of config.json, with all settings of its experts.
  """
  return _experts(config, v3_routing(config), choice_bias=CHOICE_BIAS)


def v3_routing(config: Json) -> dict[str, Any]:
  """Returns the fields of the routing of a DeepSeek-V3.

  Args:
    config: Contents of config.json, with all settings of its experts.
  """
  return {
    **_expert_groups(config, experts_per_group_score=2),
    'gate_function': 'sigmoid',
    'gate_scale': config['routed_scaling_factor'],
  }


def _expert_groups(config: Json, **settings: int) -> dict[str, int]:
  return {
    'num_expert_groups': config_settings.size(config, 'n_group'),
    'groups_per_token': config_settings.size(config, 'topk_group'),
    **settings,
  }


def _decoder(config: Json, experts: MixtureOfExperts) -> RotaryDecoder:
  return config_settings.rotary_decoder(
    config,
    config_settings.of_all_layers(config, _attention(config)),
    feed_forward=config_settings.feed_forward(
      config, has_bias=_has_ffn_bias(config)
    ),
    experts=experts,
  )


def _attention(config: Json) -> LatentAttention:
  rope = config_settings.rope(config)
  nope_dim = config.get('qk_nope_head_dim', 128)
  rope_dim = config.get('qk_rope_head_dim', 64)
  scale = (nope_dim + rope_dim) ** -0.5
  if rope['rope_type'] != 'default' and rope.get('mscale_all_dim'):
    scale *= yarn_scale(rope, 'mscale_all_dim') ** 2
  return LatentAttention(
    num_heads=config_settings.size(config, 'num_attention_heads'),
    query_rank=config.get('q_lora_rank', 1536),
    key_value_rank=config.get('kv_lora_rank', 512),
    nope_dim=nope_dim,
    rope_dim=rope_dim,
    value_dim=config.get('v_head_dim', 128),
    has_interleaved_pairs=config.get('rope_interleave', True),
    has_bias=config.get('attention_bias', False),
    rope=rope,
    query_scale=scale,
  )


def _has_ffn_bias(config: Json) -> bool:
  return config.get('mlp_bias', False)


def _experts(
  config: Json,
  routing: Mapping[str, Any],
  *,
  choice_bias: str | None = None,
) -> MixtureOfExperts:
  num_layers = config_settings.size(config, 'num_hidden_layers')
  hidden_dims = config_settings.size(config, 'moe_intermediate_size')
  return MixtureOfExperts(
    num_experts=config_settings.size(config, 'n_routed_experts'),
    experts_per_token=config_settings.size(config, 'num_experts_per_tok'),
    hidden_dims=hidden_dims,
    layers=tuple(range(config['first_k_dense_replace'], num_layers)),
    normalize_gates=config.get('norm_topk_prob', True),
    # Transformers adds none; that of the papers is of each sequence.
    load_balance_loss_weight=config.get('aux_loss_alpha', 0.0),
    shared_hidden_dims=hidden_dims * config.get('n_shared_experts', 1),
    shared_has_bias=_has_ffn_bias(config),
    routing={'balances_each_sequence': True, **routing},
    tensors=ExpertTensors(
      mixture='mlp',
      gate='gate_proj',
      up='up_proj',
      down='down_proj',
      shared='shared_experts',
      choice_bias=choice_bias,
    ),
  )
