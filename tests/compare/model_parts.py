# SPDX-License-Identifier: Apache-2.0
"""Settings that small models of transformers share."""

from __future__ import annotations

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
LLAMA_3_ROPE = {
  'rope_type': 'llama3',
  'rope_theta': 100.0,
  'factor': 8.0,
  'low_freq_factor': 1.0,
  'high_freq_factor': 4.0,
  'original_max_position_embeddings': 16,
}
YARN_ROPE = {
  'rope_type': 'yarn',
  'rope_theta': 100.0,
  'factor': 4.0,
  'beta_fast': 4.0,
  'beta_slow': 0.25,
  'original_max_position_embeddings': 16,
}
NO_LAYER_INPUTS = dict(
  hidden_size_per_layer_input=0, vocab_size_per_layer_input=61
)
GEMMA_4 = dict(
  num_key_value_heads=2,
  head_dim=8,
  global_head_dim=16,
  attention_k_eq_v=True,
  sliding_window=4,
  rope_parameters={
    'full_attention': {
      'rope_type': 'proportional',
      'rope_theta': 100.0,
      'partial_rotary_factor': 0.5,
    },
    'sliding_attention': {'rope_type': 'default', 'rope_theta': 30.0},
  },
)
LATENTS = dict(
  num_key_value_heads=4,
  kv_lora_rank=12,
  qk_nope_head_dim=8,
  qk_rope_head_dim=6,
  v_head_dim=10,
  moe_intermediate_size=20,
  first_k_dense_replace=1,
)
GRANITE_HYBRIDS = dict(
  num_key_value_heads=2,
  shared_intermediate_size=24,
  mamba_n_heads=8,
  mamba_d_state=6,
  mamba_d_conv=3,
  mamba_chunk_size=4,
  attention_multiplier=0.4,
  embedding_multiplier=3.0,
  residual_multiplier=0.7,
  logits_scaling=1.6,
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
