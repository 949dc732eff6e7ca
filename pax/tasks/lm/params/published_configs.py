# SPDX-License-Identifier: Apache-2.0
"""The config.json of published models without experts."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

# Llama 2 7B.
LLAMA2: Json = {
  'model_type': 'llama',
  'vocab_size': 32000,
  'hidden_size': 4096,
  'intermediate_size': 11008,
  'num_hidden_layers': 32,
  'num_attention_heads': 32,
  'rms_norm_eps': 1e-5,
  'bos_token_id': 1,
  'eos_token_id': 2,
}
# Llama 3.2 1B.
LLAMA3: Json = {
  'model_type': 'llama',
  'vocab_size': 128256,
  'hidden_size': 2048,
  'intermediate_size': 8192,
  'num_hidden_layers': 16,
  'num_attention_heads': 32,
  'num_key_value_heads': 8,
  'head_dim': 64,
  'rms_norm_eps': 1e-5,
  'rope_theta': 500000.0,
  'rope_scaling': {
    'rope_type': 'llama3',
    'factor': 32.0,
    'low_freq_factor': 1.0,
    'high_freq_factor': 4.0,
    'original_max_position_embeddings': 8192,
  },
  'tie_word_embeddings': True,
  'bos_token_id': 128000,
  'eos_token_id': 128001,
}
# Mistral 7B v0.1.
MISTRAL: Json = {
  'model_type': 'mistral',
  'vocab_size': 32000,
  'hidden_size': 4096,
  'intermediate_size': 14336,
  'num_hidden_layers': 32,
  'num_attention_heads': 32,
  'num_key_value_heads': 8,
  'rms_norm_eps': 1e-5,
  'sliding_window': 4096,
  'bos_token_id': 1,
  'eos_token_id': 2,
}
# Qwen2.5 0.5B.
QWEN2: Json = {
  'model_type': 'qwen2',
  'vocab_size': 151936,
  'hidden_size': 896,
  'intermediate_size': 4864,
  'num_hidden_layers': 24,
  'num_attention_heads': 14,
  'num_key_value_heads': 2,
  'rms_norm_eps': 1e-6,
  'rope_theta': 1000000.0,
  'tie_word_embeddings': True,
  'bos_token_id': 151643,
  'eos_token_id': 151643,
}
# Qwen3 0.6B.
QWEN3: Json = {
  'model_type': 'qwen3',
  'vocab_size': 151936,
  'hidden_size': 1024,
  'intermediate_size': 3072,
  'num_hidden_layers': 28,
  'num_attention_heads': 16,
  'num_key_value_heads': 8,
  'head_dim': 128,
  'rms_norm_eps': 1e-6,
  'rope_theta': 1000000.0,
  'tie_word_embeddings': True,
  'bos_token_id': 151643,
  'eos_token_id': 151645,
}
# The language model of Ministral 3 8B.
MINISTRAL_3: Json = {
  'model_type': 'ministral3',
  'vocab_size': 131072,
  'hidden_size': 4096,
  'intermediate_size': 14336,
  'num_hidden_layers': 34,
  'num_attention_heads': 32,
  'bos_token_id': 1,
  'eos_token_id': 2,
}
# The language model of Qwen3.5 9B.
QWEN3_5: Json = {
  'model_type': 'qwen3_5_text',
  'vocab_size': 248320,
  'hidden_size': 4096,
  'intermediate_size': 12288,
  'num_hidden_layers': 32,
  'num_attention_heads': 16,
  'num_key_value_heads': 4,
  'head_dim': 256,
  'rms_norm_eps': 1e-6,
  'rope_parameters': {
    'rope_type': 'default',
    'rope_theta': 10000000.0,
    'partial_rotary_factor': 0.25,
  },
  'linear_num_value_heads': 32,
  'eos_token_id': 248044,
}
# Gemma 2B.
GEMMA: Json = {
  'model_type': 'gemma',
  'vocab_size': 256000,
  'hidden_size': 2048,
  'intermediate_size': 16384,
  'num_hidden_layers': 18,
  'num_attention_heads': 8,
  'num_key_value_heads': 1,
  'head_dim': 256,
  'bos_token_id': 2,
  'eos_token_id': 1,
}
# Gemma 2 2B.
GEMMA2: Json = {
  'model_type': 'gemma2',
  'vocab_size': 256000,
  'hidden_size': 2304,
  'intermediate_size': 9216,
  'num_hidden_layers': 26,
  'num_attention_heads': 8,
  'num_key_value_heads': 4,
  'head_dim': 256,
  'query_pre_attn_scalar': 256,
  'sliding_window': 4096,
  'attn_logit_softcapping': 50.0,
  'final_logit_softcapping': 30.0,
  'bos_token_id': 2,
  'eos_token_id': 1,
}
# Gemma 3 1B, which reads text only.
GEMMA3: Json = {
  'model_type': 'gemma3_text',
  'vocab_size': 262144,
  'hidden_size': 1152,
  'intermediate_size': 6912,
  'num_hidden_layers': 26,
  'num_attention_heads': 4,
  'num_key_value_heads': 1,
  'head_dim': 256,
  'query_pre_attn_scalar': 256,
  'sliding_window': 512,
  'rope_theta': 1000000.0,
  'rope_local_base_freq': 10000.0,
  'bos_token_id': 2,
  'eos_token_id': 1,
}
# The language model of Gemma 4 12B.
GEMMA4: Json = {
  'model_type': 'gemma4_unified_text',
  'vocab_size': 262144,
  'hidden_size': 3840,
  'intermediate_size': 15360,
  'num_hidden_layers': 48,
  'num_attention_heads': 16,
  'num_key_value_heads': 8,
  'num_global_key_value_heads': 1,
  'attention_k_eq_v': True,
  'final_logit_softcapping': 30.0,
  'bos_token_id': 2,
  'eos_token_id': 1,
  'pad_token_id': 0,
}
# The language model of Gemma 4 E2B.
GEMMA4_E2B: Json = {
  'model_type': 'gemma4_text',
  'vocab_size': 262144,
  'hidden_size': 1536,
  'intermediate_size': 6144,
  'use_double_wide_mlp': True,
  'num_hidden_layers': 35,
  'num_attention_heads': 8,
  'num_key_value_heads': 1,
  'num_kv_shared_layers': 20,
  'layer_types': [*['sliding_attention'] * 4, 'full_attention'] * 7,
  'final_logit_softcapping': 30.0,
  'bos_token_id': 2,
  'eos_token_id': 1,
  'pad_token_id': 0,
}
# The language model of Gemma 4 E4B.
GEMMA4_E4B: Json = {
  'model_type': 'gemma4_text',
  'vocab_size': 262144,
  'hidden_size': 2560,
  'intermediate_size': 10240,
  'num_hidden_layers': 42,
  'num_attention_heads': 8,
  'num_key_value_heads': 2,
  'num_kv_shared_layers': 18,
  'final_logit_softcapping': 30.0,
  'bos_token_id': 2,
  'eos_token_id': 1,
  'pad_token_id': 0,
}
# OLMo 2 1B.
OLMO2: Json = {
  'model_type': 'olmo2',
  'vocab_size': 100352,
  'hidden_size': 2048,
  'intermediate_size': 8192,
  'num_hidden_layers': 16,
  'num_attention_heads': 16,
  'rms_norm_eps': 1e-6,
  'rope_theta': 500000.0,
  'eos_token_id': 100257,
}
# OLMo 3 7B.
OLMO3: Json = {
  'model_type': 'olmo3',
  'vocab_size': 100278,
  'hidden_size': 4096,
  'intermediate_size': 11008,
  'num_hidden_layers': 32,
  'num_attention_heads': 32,
  'sliding_window': 4096,
  'rms_norm_eps': 1e-6,
  'rope_theta': 500000.0,
  'rope_scaling': {
    'rope_type': 'yarn',
    'factor': 8.0,
    'beta_fast': 32.0,
    'beta_slow': 1.0,
    'attention_factor': 1.2079441541679836,
    'original_max_position_embeddings': 8192,
  },
  'eos_token_id': 100257,
}
# Phi-3 mini for 4k tokens, 3.8B.
PHI3: Json = {
  'model_type': 'phi3',
  'vocab_size': 32064,
  'hidden_size': 3072,
  'intermediate_size': 8192,
  'num_hidden_layers': 32,
  'num_attention_heads': 32,
  'rms_norm_eps': 1e-5,
  'sliding_window': 2047,
  'bos_token_id': 1,
  'eos_token_id': 32000,
}
# Phi-4, 14.7B.
PHI4: Json = {
  'model_type': 'phi3',
  'vocab_size': 100352,
  'hidden_size': 5120,
  'intermediate_size': 17920,
  'num_hidden_layers': 40,
  'num_attention_heads': 40,
  'num_key_value_heads': 10,
  'rms_norm_eps': 1e-5,
  'rope_theta': 250000.0,
  'bos_token_id': 100257,
  'eos_token_id': 100265,
}
# SmolLM3 3B.
SMOLLM3: Json = {
  'model_type': 'smollm3',
  'vocab_size': 128256,
  'hidden_size': 2048,
  'intermediate_size': 11008,
  'num_hidden_layers': 36,
  'num_attention_heads': 16,
  'num_key_value_heads': 4,
  'rms_norm_eps': 1e-6,
  'rope_theta': 5000000.0,
  'no_rope_layer_interval': 4,
  'tie_word_embeddings': True,
  'bos_token_id': 128000,
  'eos_token_id': 128012,
}
# GLM-4 9B of the releases 0414.
GLM4: Json = {
  'model_type': 'glm4',
  'vocab_size': 151552,
  'hidden_size': 4096,
  'intermediate_size': 13696,
  'num_hidden_layers': 40,
  'num_attention_heads': 32,
  'num_key_value_heads': 2,
  'head_dim': 128,
  'attention_bias': True,
  'rms_norm_eps': 1e-5,
  'rope_theta': 10000.0,
  'partial_rotary_factor': 0.5,
  'eos_token_id': 151329,
}
# Granite 3.1 2B.
GRANITE: Json = {
  'model_type': 'granite',
  'vocab_size': 49155,
  'hidden_size': 2048,
  'intermediate_size': 8192,
  'num_hidden_layers': 40,
  'num_attention_heads': 32,
  'num_key_value_heads': 8,
  'rms_norm_eps': 1e-5,
  'rope_theta': 5000000.0,
  'attention_multiplier': 0.015625,
  'embedding_multiplier': 12.0,
  'residual_multiplier': 0.22,
  'logits_scaling': 8.0,
  'tie_word_embeddings': True,
  'bos_token_id': 0,
  'eos_token_id': 0,
}
# Granite 4.0 H Micro.
GRANITE_4: Json = {
  'model_type': 'granitemoehybrid',
  'vocab_size': 100352,
  'hidden_size': 2048,
  'intermediate_size': 8192,
  'shared_intermediate_size': 8192,
  'num_hidden_layers': 40,
  'layer_types': ['attention' if i % 10 == 5 else 'mamba' for i in range(40)],
  'num_attention_heads': 32,
  'num_key_value_heads': 8,
  'position_embedding_type': 'nope',
  'num_local_experts': 0,
  'num_experts_per_tok': 0,
  'mamba_n_heads': 64,
  'mamba_d_head': 64,
  'mamba_d_state': 128,
  'rms_norm_eps': 1e-5,
  'attention_multiplier': 0.015625,
  'embedding_multiplier': 12.0,
  'residual_multiplier': 0.22,
  'logits_scaling': 8.0,
  'tie_word_embeddings': True,
  'bos_token_id': 100257,
  'eos_token_id': 100257,
}
# GPT-2 with 124M parameters.
GPT2: Json = {
  'model_type': 'gpt2',
  'vocab_size': 50257,
  'n_positions': 1024,
  'n_embd': 768,
  'n_layer': 12,
  'n_head': 12,
  'bos_token_id': 50256,
  'eos_token_id': 50256,
}
# T5 small.
T5: Json = {
  'model_type': 't5',
  'vocab_size': 32128,
  'd_model': 512,
  'd_kv': 64,
  'd_ff': 2048,
  'num_layers': 6,
  'num_heads': 8,
  'pad_token_id': 0,
  'eos_token_id': 1,
  'decoder_start_token_id': 0,
}
# T5 1.1 small.
T5_1_1: Json = {
  **T5,
  'd_ff': 1024,
  'num_layers': 8,
  'num_heads': 6,
  'feed_forward_proj': 'gated-gelu',
  'tie_word_embeddings': False,
}
# EXAONE 4 32B.
EXAONE_4: Json = {
  'model_type': 'exaone4',
  'vocab_size': 102400,
  'hidden_size': 5120,
  'intermediate_size': 27392,
  'num_hidden_layers': 64,
  'num_attention_heads': 40,
  'num_key_value_heads': 8,
  'head_dim': 128,
  'sliding_window': 4096,
  'sliding_window_pattern': 'LLLG',
  'rms_norm_eps': 1e-5,
  'rope_theta': 1_000_000.0,
  'rope_scaling': {
    'rope_type': 'llama3',
    'factor': 16.0,
    'low_freq_factor': 1.0,
    'high_freq_factor': 4.0,
    'original_max_position_embeddings': 8192,
  },
  'bos_token_id': 1,
  'eos_token_id': 361,
}
# Seed-OSS 36B.
SEED_OSS: Json = {
  'model_type': 'seed_oss',
  'vocab_size': 155136,
  'hidden_size': 5120,
  'intermediate_size': 27648,
  'num_hidden_layers': 64,
  'num_attention_heads': 80,
  'num_key_value_heads': 8,
  'head_dim': 128,
  'attention_bias': True,
  'attention_out_bias': False,
  'rms_norm_eps': 1e-6,
  'rope_theta': 10_000_000.0,
  'bos_token_id': 0,
  'eos_token_id': 2,
}
