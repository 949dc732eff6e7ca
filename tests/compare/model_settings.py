# SPDX-License-Identifier: Apache-2.0
"""Settings of small models of transformers, several for some families."""

from __future__ import annotations

from typing import Any

from tests.compare import model_parts, moe_model_settings

# The family and the settings of each model.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
  'llama2': ('llama', {}),
  'llama3': (
    'llama',
    dict(
      num_key_value_heads=2,
      head_dim=12,
      rope_parameters=model_parts.LLAMA_3_ROPE,
      tie_word_embeddings=True,
    ),
  ),
  'llama_biases': (
    'llama',
    dict(num_key_value_heads=1, attention_bias=True, mlp_bias=True),
  ),
  'mistral': ('mistral', dict(num_key_value_heads=2, sliding_window=4)),
  'ministral3': (
    'ministral3',
    dict(
      num_key_value_heads=2,
      head_dim=12,
      rope_parameters={
        **model_parts.YARN_ROPE,
        'mscale': 1.0,
        'mscale_all_dim': 1.0,
        'llama_4_scaling_beta': 0.5,
        # Some positions are beyond it.
        'original_max_position_embeddings': 4,
      },
    ),
  ),
  'seed_oss': ('seed_oss', dict(num_key_value_heads=2, head_dim=12)),
  'seed_oss_biases': (
    'seed_oss',
    dict(
      num_key_value_heads=1,
      head_dim=8,
      attention_bias=False,
      attention_out_bias=True,
      mlp_bias=True,
      tie_word_embeddings=True,
    ),
  ),
  'exaone4': (
    'exaone4',
    dict(
      num_key_value_heads=2,
      num_hidden_layers=4,
      sliding_window=4,
      sliding_window_pattern=2,
      rope_parameters=model_parts.LLAMA_3_ROPE,
    ),
  ),
  'exaone4_global': (
    'exaone4',
    dict(
      num_key_value_heads=4,
      sliding_window=None,
      layer_types=['full_attention'] * 2,
      tie_word_embeddings=True,
    ),
  ),
  'qwen2': ('qwen2', dict(num_key_value_heads=2)),
  'qwen2_window': (
    'qwen2',
    dict(
      num_key_value_heads=1,
      use_sliding_window=True,
      sliding_window=3,
      max_window_layers=1,
      tie_word_embeddings=True,
    ),
  ),
  'qwen3': ('qwen3', dict(num_key_value_heads=2, head_dim=12)),
  'qwen3_yarn': (
    'qwen3',
    dict(
      num_key_value_heads=2, head_dim=12, rope_parameters=model_parts.YARN_ROPE
    ),
  ),
  'qwen3_5': (
    'qwen3_5_text',
    dict(
      **model_parts.DELTA_NETS,
      num_hidden_layers=4,
      layer_types=['linear_attention', 'full_attention'] * 2,
      num_key_value_heads=2,
      head_dim=16,
      # Texts have one position in all parts.
      rope_parameters={
        'rope_type': 'default',
        'rope_theta': 100.0,
        'partial_rotary_factor': 0.5,
        'mrope_section': [2, 1, 1],
        'mrope_interleaved': True,
      },
    ),
  ),
  'qwen3_5_tied': (
    'qwen3_5_text',
    dict(
      **model_parts.DELTA_NETS,
      num_hidden_layers=4,
      num_key_value_heads=1,
      head_dim=8,
      attention_bias=True,
      tie_word_embeddings=True,
    ),
  ),
  'gemma': ('gemma', dict(num_key_value_heads=1, head_dim=12)),
  'gemma2': (
    'gemma2',
    dict(
      num_key_value_heads=2,
      head_dim=12,
      sliding_window=4,
      query_pre_attn_scalar=11,
      attn_logit_softcapping=2.0,
      final_logit_softcapping=3.0,
    ),
  ),
  'gemma3': (
    'gemma3_text',
    dict(
      num_key_value_heads=2,
      num_hidden_layers=3,
      head_dim=12,
      sliding_window=4,
      layer_types=[
        'sliding_attention',
        'full_attention',
        'sliding_attention',
      ],
      query_pre_attn_scalar=11,
      rope_parameters={
        'full_attention': {
          'rope_type': 'linear',
          'rope_theta': 1000.0,
          'factor': 8.0,
        },
        'sliding_attention': {'rope_type': 'default', 'rope_theta': 100.0},
      },
    ),
  ),
  'gemma4': (
    'gemma4_unified_text',
    dict(
      **model_parts.GEMMA_4,
      num_hidden_layers=3,
      num_global_key_value_heads=1,
      layer_types=['sliding_attention', 'sliding_attention', 'full_attention'],
      final_logit_softcapping=3.0,
    ),
  ),
  'gemma4_e2b': (
    'gemma4_text',
    dict(
      **{**model_parts.GEMMA_4, 'attention_k_eq_v': False},
      num_hidden_layers=6,
      layer_types=['sliding_attention', 'full_attention'] * 3,
      num_kv_shared_layers=3,
      use_double_wide_mlp=True,
      hidden_size_per_layer_input=6,
      vocab_size_per_layer_input=61,
      final_logit_softcapping=3.0,
    ),
  ),
  'gemma4_e4b': (
    'gemma4_text',
    dict(
      **{
        **model_parts.GEMMA_4,
        'attention_k_eq_v': False,
        'num_key_value_heads': 1,
      },
      num_hidden_layers=5,
      layer_types=[
        *('full_attention', 'sliding_attention', 'sliding_attention'),
        *('sliding_attention', 'full_attention'),
      ],
      num_kv_shared_layers=2,
      hidden_size_per_layer_input=6,
      vocab_size_per_layer_input=61,
    ),
  ),
  'olmo2': ('olmo2', dict(num_key_value_heads=2)),
  'olmo2_biases': (
    'olmo2',
    dict(
      num_key_value_heads=1,
      attention_bias=True,
      tie_word_embeddings=True,
      rope_parameters=model_parts.LLAMA_3_ROPE,
    ),
  ),
  'olmo3': (
    'olmo3',
    dict(
      num_key_value_heads=2,
      num_hidden_layers=4,
      sliding_window=4,
      rope_parameters={
        'full_attention': {**model_parts.YARN_ROPE, 'attention_factor': 1.2},
        'sliding_attention': {'rope_type': 'default', 'rope_theta': 100.0},
      },
    ),
  ),
  'phi3': (
    'phi3',
    dict(
      num_key_value_heads=2,
      sliding_window=4,
      rope_parameters={
        'rope_type': 'default',
        'rope_theta': 100.0,
        'partial_rotary_factor': 0.75,
      },
    ),
  ),
  'phi4': ('phi3', dict(num_key_value_heads=1, tie_word_embeddings=True)),
  'smollm3': (
    'smollm3',
    dict(
      num_key_value_heads=2,
      num_hidden_layers=4,
      no_rope_layer_interval=2,
      rope_parameters={'rope_type': 'default', 'rope_theta': 100.0},
    ),
  ),
  'smollm3_window': (
    'smollm3',
    dict(
      num_key_value_heads=4,
      num_hidden_layers=3,
      no_rope_layers=[1, 0, 1],
      use_sliding_window=True,
      sliding_window=3,
      attention_bias=True,
      mlp_bias=True,
      tie_word_embeddings=False,
    ),
  ),
  'glm4': (
    'glm4',
    dict(
      num_key_value_heads=2,
      head_dim=12,
      rope_parameters={
        'rope_type': 'default',
        'rope_theta': 100.0,
        'partial_rotary_factor': 0.5,
      },
    ),
  ),
  'glm4_single_key': (
    'glm4',
    dict(
      num_key_value_heads=1,
      head_dim=8,
      attention_bias=False,
      tie_word_embeddings=True,
      rope_parameters=model_parts.YARN_ROPE,
      partial_rotary_factor=1.0,
    ),
  ),
  'granite': (
    'granite',
    dict(
      num_key_value_heads=2,
      attention_multiplier=0.4,
      embedding_multiplier=3.0,
      residual_multiplier=0.7,
      logits_scaling=1.6,
      tie_word_embeddings=True,
    ),
  ),
  'granite_biases': (
    'granite',
    dict(
      num_key_value_heads=1,
      embedding_multiplier=2,
      logits_scaling=0.5,
      attention_bias=True,
      mlp_bias=True,
    ),
  ),
  'granite_hybrid': (
    'granitemoehybrid',
    dict(
      num_hidden_layers=4,
      layer_types=2 * ['mamba', 'attention'],
      num_local_experts=0,
      mamba_n_groups=2,
      tie_word_embeddings=True,
      **model_parts.GRANITE_HYBRIDS,
    ),
  ),
  'gpt2': (
    'gpt2',
    dict(
      vocab_size=61,
      n_positions=64,
      n_embd=32,
      n_layer=2,
      n_head=4,
      bos_token_id=1,
      eos_token_id=2,
    ),
  ),
  't5': ('t5', {}),
  't5_1_1': (
    't5',
    dict(feed_forward_proj='gated-gelu', tie_word_embeddings=False),
  ),
  **moe_model_settings.MODELS,
}
