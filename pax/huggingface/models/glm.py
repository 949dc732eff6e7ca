# SPDX-License-Identifier: Apache-2.0
"""GLM-4, GLM-4.5 and GLM-4.7-Flash, which has latent attention."""

from __future__ import annotations

from pax.huggingface.layers import layer_norms
from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.models import config_settings, deepseek
from pax.huggingface.models.config_settings import Json


def read_glm4(config: Json) -> RotaryDecoder:
  """Returns the settings of a GLM-4 of the releases 0414.

  Raises:
    ValueError: A setting is not supported.
  """
  config = {
    'num_key_value_heads': 2,
    'head_dim': 128,
    'rms_norm_eps': 1.5625e-7,
    'partial_rotary_factor': 0.5,
    **config,
  }
  attention = config_settings.rotary_attention(
    config,
    has_partial_rotary=True,
    has_interleaved_pairs=True,
    has_qkv_bias=config.get('attention_bias', True),
  )
  return config_settings.rotary_decoder(
    config,
    config_settings.of_all_layers(config, attention),
    feed_forward=config_settings.feed_forward(
      config, fused_tensors=('gate_up_proj', 'down_proj')
    ),
    norms=layer_norms.GLM_4,
  )


def read_glm4_moe(config: Json) -> RotaryDecoder:
  """Returns a model of type glm4_moe."""
  config = {
    'num_key_value_heads': 8,
    'rms_norm_eps': 1e-5,
    'partial_rotary_factor': 0.5,
    'moe_intermediate_size': 1408,
    'n_routed_experts': 128,
    'num_experts_per_tok': 8,
    'n_group': 1,
    'topk_group': 1,
    'first_k_dense_replace': 1,
    'routed_scaling_factor': 1.0,
    **config,
  }
  attention = config_settings.rotary_attention(
    config,
    has_partial_rotary=True,
    has_qkv_bias=config.get('attention_bias', False),
    has_head_norms=config.get('use_qk_norm', False),
  )
  return config_settings.rotary_decoder(
    config,
    config_settings.of_all_layers(config, attention),
    experts=deepseek.v3_experts(config),
  )


def read_glm4_moe_lite(config: Json) -> RotaryDecoder:
  """Returns a model of type glm4_moe_lite.

  Raises:
    ValueError: A setting is not supported.
  """
  return deepseek.read_deepseek_v3(
    {
      'rms_norm_eps': 1e-5,
      'q_lora_rank': 768,
      'qk_nope_head_dim': 192,
      'v_head_dim': 256,
      'moe_intermediate_size': 1536,
      'n_routed_experts': 64,
      'num_experts_per_tok': 4,
      'n_group': 1,
      'topk_group': 1,
      'routed_scaling_factor': 1.8,
      **config,
      'first_k_dense_replace': _num_dense_layers(config),
    }
  )


def _num_dense_layers(config: Json) -> int:
  """Returns the number of layers before those with experts.

  Raises:
    ValueError: There are others after one with experts.
  """
  kinds = config.get('mlp_layer_types')
  if kinds is None:
    return config.get('first_k_dense_replace', 1)
  num_dense = list(kinds).count('dense')
  num_sparse = config_settings.size(config, 'num_hidden_layers') - num_dense
  if list(kinds) != ['dense'] * num_dense + ['sparse'] * num_sparse:
    raise ValueError(
      "mlp_layer_types in config.json must be 'dense' for the first layers and"
      f" 'sparse' for the others, got {kinds}; use the file of the model"
    )
  return num_dense
