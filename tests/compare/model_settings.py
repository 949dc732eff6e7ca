# SPDX-License-Identifier: Apache-2.0
"""Settings of small models of transformers, several for some families."""

from __future__ import annotations

from typing import Any

SIZES = dict(
  vocab_size=61,
  hidden_size=32,
  intermediate_size=48,
  num_hidden_layers=2,
  num_attention_heads=4,
  max_position_embeddings=64,
  bos_token_id=1,
  eos_token_id=2,
  pad_token_id=0,
)
T5_SIZES = dict(
  vocab_size=61,
  d_model=32,
  d_kv=12,
  d_ff=48,
  num_layers=2,
  num_decoder_layers=3,
  num_heads=4,
  relative_attention_num_buckets=8,
  relative_attention_max_distance=10,
  decoder_start_token_id=0,
)
_LLAMA_3_ROPE = {
  'rope_type': 'llama3',
  'rope_theta': 100.0,
  'factor': 8.0,
  'low_freq_factor': 1.0,
  'high_freq_factor': 4.0,
  'original_max_position_embeddings': 16,
}
_YARN_ROPE = {
  'rope_type': 'yarn',
  'rope_theta': 100.0,
  'factor': 4.0,
  'beta_fast': 4.0,
  'beta_slow': 0.25,
  'original_max_position_embeddings': 16,
}
_LATENTS = dict(
  num_key_value_heads=4,
  kv_lora_rank=12,
  qk_nope_head_dim=8,
  qk_rope_head_dim=6,
  v_head_dim=10,
  moe_intermediate_size=20,
  first_k_dense_replace=1,
)
DELTA_NETS = dict(
  linear_num_key_heads=2,
  linear_num_value_heads=4,
  linear_key_head_dim=6,
  linear_value_head_dim=10,
  linear_conv_kernel_dim=3,
)
DELTA_NET_EXPERTS = dict(
  moe_intermediate_size=20,
  shared_expert_intermediate_size=12,
  num_experts=6,
  num_experts_per_tok=3,
)
# Model type and settings.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
  'llama2': ('llama', {}),
  'llama3': (
    'llama',
    dict(
      num_key_value_heads=2,
      head_dim=12,
      rope_parameters=_LLAMA_3_ROPE,
      tie_word_embeddings=True,
    ),
  ),
  'llama_biases': (
    'llama',
    dict(num_key_value_heads=1, attention_bias=True, mlp_bias=True),
  ),
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
      rope_parameters=_LLAMA_3_ROPE,
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
        **_LLAMA_3_ROPE,
        'low_freq_factor': 2.0,
        'high_freq_factor': 2.0,
      },
    ),
  ),
  'mistral': ('mistral', dict(num_key_value_heads=2, sliding_window=4)),
  'ministral3': (
    'ministral3',
    dict(
      num_key_value_heads=2,
      head_dim=12,
      rope_parameters={
        **_YARN_ROPE,
        'mscale': 1.0,
        'mscale_all_dim': 1.0,
        'llama_4_scaling_beta': 0.5,
        # Some positions are beyond it.
        'original_max_position_embeddings': 4,
      },
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
      rope_parameters=_LLAMA_3_ROPE,
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
  'mixtral': (
    'mixtral',
    dict(
      num_key_value_heads=2,
      num_local_experts=4,
      num_experts_per_tok=2,
      sliding_window=6,
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
    dict(num_key_value_heads=2, head_dim=12, rope_parameters=_YARN_ROPE),
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
      **DELTA_NETS,
      **DELTA_NET_EXPERTS,
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
      **DELTA_NETS,
      **DELTA_NET_EXPERTS,
      num_hidden_layers=4,
      num_key_value_heads=1,
      head_dim=8,
      attention_bias=True,
      mlp_only_layers=[1],
      norm_topk_prob=False,
      tie_word_embeddings=True,
    ),
  ),
  'qwen3_5': (
    'qwen3_5_text',
    dict(
      **DELTA_NETS,
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
      **DELTA_NETS,
      num_hidden_layers=4,
      num_key_value_heads=1,
      head_dim=8,
      attention_bias=True,
      tie_word_embeddings=True,
    ),
  ),
  'qwen3_5_moe': (
    'qwen3_5_moe_text',
    dict(
      **DELTA_NETS,
      **DELTA_NET_EXPERTS,
      num_hidden_layers=4,
      layer_types=['linear_attention', 'full_attention'] * 2,
      num_key_value_heads=2,
      head_dim=16,
    ),
  ),
  'deepseek_v2': (
    'deepseek_v2',
    dict(
      **_LATENTS,
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
      **_LATENTS,
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
      **_LATENTS,
      q_lora_rank=10,
      n_routed_experts=8,
      num_experts_per_tok=3,
      n_group=4,
      topk_group=2,
      rope_parameters={**_YARN_ROPE, 'mscale': 0.7, 'mscale_all_dim': 1.3},
      num_nextn_predict_layers=0,
    ),
  ),
  'deepseek_v3_halves': (
    'deepseek_v3',
    dict(
      **_LATENTS,
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
        **_YARN_ROPE,
        **dict.fromkeys(('beta_fast', 'beta_slow'), 1.0),
        **dict.fromkeys(('mscale', 'mscale_all_dim'), 1.0),
      },
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
      rope_parameters={**_YARN_ROPE, 'truncate': False},
    ),
  ),
  'olmo2': ('olmo2', dict(num_key_value_heads=2)),
  'olmo2_biases': (
    'olmo2',
    dict(
      num_key_value_heads=1,
      attention_bias=True,
      tie_word_embeddings=True,
      rope_parameters=_LLAMA_3_ROPE,
    ),
  ),
  'olmo3': (
    'olmo3',
    dict(
      num_key_value_heads=2,
      num_hidden_layers=4,
      sliding_window=4,
      rope_parameters={
        'full_attention': {**_YARN_ROPE, 'attention_factor': 1.2},
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
      rope_parameters=_YARN_ROPE,
      partial_rotary_factor=1.0,
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
      **{k: v for k, v in _LATENTS.items() if k != 'first_k_dense_replace'},
      q_lora_rank=9,
      n_routed_experts=8,
      num_experts_per_tok=3,
      n_group=4,
      topk_group=2,
      num_hidden_layers=3,
      mlp_layer_types=['dense', 'dense', 'sparse'],
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
  'gpt2': (
    'gpt2',
    dict(vocab_size=61, n_positions=64, n_embd=32, n_layer=2, n_head=4,
         bos_token_id=1, eos_token_id=2),
  ),
  't5': ('t5', {}),
  't5_1_1': (
    't5',
    dict(feed_forward_proj='gated-gelu', tie_word_embeddings=False),
  ),
}  # fmt: skip
