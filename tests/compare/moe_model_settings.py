# SPDX-License-Identifier: Apache-2.0
"""Settings of small models with experts, several for some families."""

from __future__ import annotations

from typing import Any

from tests.compare import model_parts

# The family and the settings of each model.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
  'llama4': (
    'llama4_text',
    dict(
      num_key_value_heads=2,
      head_dim=12,
      intermediate_size=20,
      intermediate_size_mlp=48,
      num_local_experts=4,
      interleave_moe_layer_step=2,
      no_rope_layer_interval=2,
      attention_chunk_size=4,
      floor_scale=2,
      attn_scale=0.5,
      rope_parameters=model_parts.LLAMA_3_ROPE,
    ),
  ),
  'llama4_biases': (
    'llama4_text',
    dict(
      num_key_value_heads=1,
      head_dim=8,
      num_hidden_layers=4,
      intermediate_size=20,
      intermediate_size_mlp=24,
      num_local_experts=5,
      num_experts_per_tok=2,
      moe_layers=[0, 1, 3],
      no_rope_layers=[1, 0, 1, 1],
      layer_types=[
        *('full_attention', 'chunked_attention', 'chunked_attention'),
        'full_attention',
      ],
      attention_chunk_size=3,
      use_qk_norm=False,
      attn_temperature_tuning=False,
      attention_bias=True,
      tie_word_embeddings=True,
      # As Scout has them.
      rope_parameters={
        **model_parts.LLAMA_3_ROPE,
        'low_freq_factor': 2.0,
        'high_freq_factor': 2.0,
      },
    ),
  ),
  'granite_hybrid_moe': (
    'granitemoehybrid',
    dict(
      num_hidden_layers=4,
      layer_types=2 * ['attention', 'mamba'],
      num_local_experts=4,
      num_experts_per_tok=2,
      position_embedding_type='rope',
      mamba_conv_bias=False,
      **{**model_parts.GRANITE_HYBRIDS, 'intermediate_size': 20},
    ),
  ),
  'nemotron_h': (
    'nemotron_h',
    dict(
      num_key_value_heads=2,
      head_dim=12,
      layers_block_type=[
        *('linear_attention', 'moe', 'linear_attention'),
        *('full_attention', 'moe', 'full_attention', 'mlp'),
      ],
      mamba_num_heads=4,
      mamba_head_dim=10,
      n_groups=2,
      ssm_state_size=6,
      conv_kernel=3,
      chunk_size=4,
      n_routed_experts=4,
      num_experts_per_tok=2,
      n_group=2,
      topk_group=1,
      moe_intermediate_size=20,
      moe_shared_expert_intermediate_size=24,
      routed_scaling_factor=1.5,
      # Transformers bounds time steps of whole sequences by it, but neither
      # those of decoding steps, nor the kernels that models are trained with.
      time_step_min=1e-30,
    ),
  ),
  'minimax_m2': (
    'minimax_m2',
    dict(
      num_key_value_heads=2,
      head_dim=12,
      rotary_dim=8,
      num_local_experts=5,
      num_experts_per_tok=2,
    ),
  ),
  'mixtral': (
    'mixtral',
    dict(
      num_key_value_heads=2,
      num_local_experts=4,
      num_experts_per_tok=2,
      sliding_window=6,
    ),
  ),
  'qwen3_moe': (
    'qwen3_moe',
    dict(
      num_key_value_heads=2,
      head_dim=12,
      moe_intermediate_size=20,
      num_experts=6,
      num_experts_per_tok=3,
      norm_topk_prob=True,
      mlp_only_layers=[0],
    ),
  ),
  'qwen3_moe_gates': (
    'qwen3_moe',
    dict(
      num_key_value_heads=2,
      moe_intermediate_size=20,
      num_experts=5,
      num_experts_per_tok=1,
      norm_topk_prob=False,
    ),
  ),
  'qwen3_next': (
    'qwen3_next',
    dict(
      **model_parts.DELTA_NETS,
      **model_parts.DELTA_NET_EXPERTS,
      num_hidden_layers=4,
      layer_types=['linear_attention', 'full_attention'] * 2,
      num_key_value_heads=2,
      head_dim=16,
      rope_parameters={
        'rope_type': 'default',
        'rope_theta': 100.0,
        'partial_rotary_factor': 0.25,
      },
    ),
  ),
  'qwen3_next_biases': (
    'qwen3_next',
    dict(
      **model_parts.DELTA_NETS,
      **model_parts.DELTA_NET_EXPERTS,
      num_hidden_layers=4,
      num_key_value_heads=1,
      head_dim=8,
      attention_bias=True,
      mlp_only_layers=[1],
      norm_topk_prob=False,
      tie_word_embeddings=True,
    ),
  ),
  'qwen3_5_moe': (
    'qwen3_5_moe_text',
    dict(
      **model_parts.DELTA_NETS,
      **model_parts.DELTA_NET_EXPERTS,
      num_hidden_layers=4,
      layer_types=['linear_attention', 'full_attention'] * 2,
      num_key_value_heads=2,
      head_dim=16,
    ),
  ),
  'deepseek_v2': (
    'deepseek_v2',
    dict(
      **model_parts.LATENTS,
      q_lora_rank=None,
      n_routed_experts=6,
      num_experts_per_tok=2,
      n_shared_experts=2,
      topk_method='group_limited_greedy',
      n_group=3,
      topk_group=2,
      routed_scaling_factor=2.0,
    ),
  ),
  'deepseek_v2_greedy': (
    'deepseek_v2',
    dict(
      **model_parts.LATENTS,
      q_lora_rank=10,
      n_routed_experts=5,
      num_experts_per_tok=3,
      attention_bias=True,
      mlp_bias=True,
    ),
  ),
  'deepseek_v3': (
    'deepseek_v3',
    dict(
      **model_parts.LATENTS,
      q_lora_rank=10,
      n_routed_experts=8,
      num_experts_per_tok=3,
      n_group=4,
      topk_group=2,
      rope_parameters={
        **model_parts.YARN_ROPE,
        'mscale': 0.7,
        'mscale_all_dim': 1.3,
      },
      num_nextn_predict_layers=0,
    ),
  ),
  'deepseek_v3_halves': (
    'deepseek_v3',
    dict(
      **model_parts.LATENTS,
      q_lora_rank=None,
      n_routed_experts=8,
      num_experts_per_tok=4,
      n_group=1,
      topk_group=1,
      norm_topk_prob=False,
      rope_interleave=False,
      attention_bias=True,
      # As Kimi K2 has them.
      rope_parameters={
        **model_parts.YARN_ROPE,
        **dict.fromkeys(('beta_fast', 'beta_slow'), 1.0),
        **dict.fromkeys(('mscale', 'mscale_all_dim'), 1.0),
      },
    ),
  ),
  'gemma4_moe': (
    'gemma4_text',
    dict(
      **model_parts.GEMMA_4,
      num_global_key_value_heads=2,
      **model_parts.NO_LAYER_INPUTS,
      layer_types=['sliding_attention', 'full_attention'],
      enable_moe_block=True,
      num_experts=6,
      top_k_experts=3,
      moe_intermediate_size=20,
    ),
  ),
  'gpt_oss': (
    'gpt_oss',
    dict(
      num_key_value_heads=2,
      head_dim=12,
      intermediate_size=20,
      num_local_experts=6,
      num_experts_per_tok=3,
      sliding_window=4,
      # Some gates and values are beyond it.
      swiglu_limit=0.5,
      rope_parameters={**model_parts.YARN_ROPE, 'truncate': False},
    ),
  ),
  'glm4_moe': (
    'glm4_moe',
    dict(
      num_key_value_heads=2,
      head_dim=12,
      moe_intermediate_size=20,
      n_routed_experts=8,
      num_experts_per_tok=3,
      n_group=4,
      topk_group=2,
      n_shared_experts=2,
      routed_scaling_factor=1.7,
      attention_bias=True,
      use_qk_norm=True,
    ),
  ),
  'glm4_moe_air': (
    'glm4_moe',
    dict(
      num_key_value_heads=1,
      moe_intermediate_size=20,
      n_routed_experts=5,
      num_experts_per_tok=2,
      num_hidden_layers=3,
      norm_topk_prob=False,
      rope_parameters={
        'rope_type': 'default',
        'rope_theta': 100.0,
        'partial_rotary_factor': 0.25,
      },
    ),
  ),
  'glm4_moe_lite': (
    'glm4_moe_lite',
    dict(
      **{
        k: v
        for k, v in model_parts.LATENTS.items()
        if k != 'first_k_dense_replace'
      },
      q_lora_rank=9,
      n_routed_experts=8,
      num_experts_per_tok=3,
      n_group=4,
      topk_group=2,
      num_hidden_layers=3,
      mlp_layer_types=['dense', 'dense', 'sparse'],
    ),
  ),
}
