# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face, trained or fine-tuned on text files.

pax --exp=tasks.lm.params.huggingface.Llama3 --set MODEL_DIR=/models/llama \
  --init_from=hf:/models/llama --job_log_dir=/tmp/pax/llama

Without MODEL_DIR a model has the sizes of the published one that its docstring
names, and a tokenizer of bytes.
"""

from __future__ import annotations

from pax import experiment_registry
from pax.huggingface import families
from pax.tasks.lm.params import fine_tuning, sequence_fine_tuning
from praxis import pax_fiddle
from praxis.layers.transformer_models import stack_configs


@experiment_registry.register
class Llama2(fine_tuning.HuggingFaceLm):
  """Llama 2 7B."""

  CONFIG = {
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


@experiment_registry.register
class Llama3(fine_tuning.HuggingFaceLm):
  """Llama 3.2 1B."""

  CONFIG = {
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


@experiment_registry.register
class Mistral(fine_tuning.HuggingFaceLm):
  """Mistral 7B v0.1."""

  CONFIG = {
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


@experiment_registry.register
class Mixtral(fine_tuning.HuggingFaceLm):
  """Mixtral 8x7B v0.1."""

  USE_REPEATED_LAYER = True
  CONFIG = {
    'model_type': 'mixtral',
    'vocab_size': 32000,
    'hidden_size': 4096,
    'intermediate_size': 14336,
    'num_hidden_layers': 32,
    'num_attention_heads': 32,
    'num_key_value_heads': 8,
    'num_local_experts': 8,
    'num_experts_per_tok': 2,
    'router_aux_loss_coef': 0.02,
    'rms_norm_eps': 1e-5,
    'rope_theta': 1000000.0,
    'bos_token_id': 1,
    'eos_token_id': 2,
  }


@experiment_registry.register
class Qwen2(fine_tuning.HuggingFaceLm):
  """Qwen2.5 0.5B."""

  CONFIG = {
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


@experiment_registry.register
class Qwen3(fine_tuning.HuggingFaceLm):
  """Qwen3 0.6B."""

  CONFIG = {
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


@experiment_registry.register
class Qwen3Moe(fine_tuning.HuggingFaceLm):
  """Qwen3 30B-A3B."""

  USE_REPEATED_LAYER = True
  CONFIG = {
    'model_type': 'qwen3_moe',
    'vocab_size': 151936,
    'hidden_size': 2048,
    'intermediate_size': 6144,
    'moe_intermediate_size': 768,
    'num_hidden_layers': 48,
    'num_attention_heads': 32,
    'num_key_value_heads': 4,
    'head_dim': 128,
    'num_experts': 128,
    'num_experts_per_tok': 8,
    'norm_topk_prob': True,
    'router_aux_loss_coef': 0.001,
    'rms_norm_eps': 1e-6,
    'rope_theta': 1000000.0,
    'bos_token_id': 151643,
    'eos_token_id': 151645,
  }


@experiment_registry.register
class Qwen3Next(fine_tuning.HuggingFaceLm):
  """Qwen3-Next, 80B with 3B for a token."""

  USE_REPEATED_LAYER = True
  CONFIG = {
    'model_type': 'qwen3_next',
    'vocab_size': 151936,
    'hidden_size': 2048,
    'intermediate_size': 5120,
    'moe_intermediate_size': 512,
    'shared_expert_intermediate_size': 512,
    'num_hidden_layers': 48,
    'num_attention_heads': 16,
    'num_key_value_heads': 2,
    'head_dim': 256,
    'partial_rotary_factor': 0.25,
    'num_experts': 512,
    'num_experts_per_tok': 10,
    'norm_topk_prob': True,
    'router_aux_loss_coef': 0.001,
    'rms_norm_eps': 1e-6,
    'rope_theta': 10000000.0,
    'bos_token_id': 151643,
    'eos_token_id': 151645,
  }


@experiment_registry.register
class DeepSeekV2(fine_tuning.HuggingFaceLm):
  """DeepSeek-V2-Lite, 16B with 2.4B for a token."""

  USE_REPEATED_LAYER = True
  CONFIG = {
    'model_type': 'deepseek_v2',
    'vocab_size': 102400,
    'hidden_size': 2048,
    'intermediate_size': 10944,
    'moe_intermediate_size': 1408,
    'num_hidden_layers': 27,
    'first_k_dense_replace': 1,
    'num_attention_heads': 16,
    'q_lora_rank': None,
    'kv_lora_rank': 512,
    'qk_nope_head_dim': 128,
    'qk_rope_head_dim': 64,
    'v_head_dim': 128,
    'n_routed_experts': 64,
    'num_experts_per_tok': 6,
    'n_shared_experts': 2,
    'topk_method': 'greedy',
    'routed_scaling_factor': 1.0,
    'aux_loss_alpha': 0.001,
    'rms_norm_eps': 1e-6,
    'rope_theta': 10000.0,
    'rope_scaling': {
      'type': 'yarn',
      'factor': 40.0,
      'beta_fast': 32,
      'beta_slow': 1,
      'mscale': 0.707,
      'mscale_all_dim': 0.707,
      'original_max_position_embeddings': 4096,
    },
    'bos_token_id': 100000,
    'eos_token_id': 100001,
  }


@experiment_registry.register
class DeepSeekV3(fine_tuning.HuggingFaceLm):
  """DeepSeek-V3, 671B with 37B for a token."""

  USE_REPEATED_LAYER = True
  # A training step adds it to the biases of experts with fewer tokens than the
  # mean, and subtracts it from others.
  CHOICE_BIAS_UPDATE_RATE = 0.001
  CONFIG = {
    'model_type': 'deepseek_v3',
    'vocab_size': 129280,
    'hidden_size': 7168,
    'intermediate_size': 18432,
    'moe_intermediate_size': 2048,
    'num_hidden_layers': 61,
    'num_nextn_predict_layers': 1,
    'first_k_dense_replace': 3,
    'num_attention_heads': 128,
    'q_lora_rank': 1536,
    'kv_lora_rank': 512,
    'qk_nope_head_dim': 128,
    'qk_rope_head_dim': 64,
    'v_head_dim': 128,
    'n_routed_experts': 256,
    'num_experts_per_tok': 8,
    'n_shared_experts': 1,
    'n_group': 8,
    'topk_group': 4,
    'norm_topk_prob': True,
    'routed_scaling_factor': 2.5,
    'aux_loss_alpha': 0.0001,
    'rms_norm_eps': 1e-6,
    'rope_theta': 10000.0,
    'rope_scaling': {
      'type': 'yarn',
      'factor': 40.0,
      'beta_fast': 32,
      'beta_slow': 1,
      'mscale': 1.0,
      'mscale_all_dim': 1.0,
      'original_max_position_embeddings': 4096,
    },
    'bos_token_id': 0,
    'eos_token_id': 1,
  }

  def _set_layers(self, model_p: pax_fiddle.Config) -> None:
    stack_p = model_p.lm_tpl.stacked_transformer_tpl
    for stacked_p in stack_configs.stacked_transformers(stack_p):
      rate = self.CHOICE_BIAS_UPDATE_RATE
      stacked_p.moe_layer_tpl.choice_bias_update_rate = rate


@experiment_registry.register
class Gemma(fine_tuning.HuggingFaceLm):
  """Gemma 2B."""

  CONFIG = {
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


@experiment_registry.register
class Gemma2(fine_tuning.HuggingFaceLm):
  """Gemma 2 2B."""

  CONFIG = {
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


@experiment_registry.register
class Gemma3(fine_tuning.HuggingFaceLm):
  """Gemma 3 1B, which reads text only."""

  CONFIG = {
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


@experiment_registry.register
class GptOss(fine_tuning.HuggingFaceLm):
  """gpt-oss 20B."""

  USE_REPEATED_LAYER = True
  CONFIG = {
    'model_type': 'gpt_oss',
    'vocab_size': 201088,
    'hidden_size': 2880,
    'intermediate_size': 2880,
    'num_hidden_layers': 24,
    'num_attention_heads': 64,
    'num_key_value_heads': 8,
    'head_dim': 64,
    'num_local_experts': 32,
    'num_experts_per_tok': 4,
    'sliding_window': 128,
    'rms_norm_eps': 1e-5,
    'rope_theta': 150000.0,
    'rope_scaling': {
      'rope_type': 'yarn',
      'factor': 32.0,
      'beta_fast': 32.0,
      'beta_slow': 1.0,
      'truncate': False,
      'original_max_position_embeddings': 4096,
    },
    'bos_token_id': 199998,
    'eos_token_id': 200002,
  }


@experiment_registry.register
class Olmo2(fine_tuning.HuggingFaceLm):
  """OLMo 2 1B."""

  CONFIG = {
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


@experiment_registry.register
class Olmo3(fine_tuning.HuggingFaceLm):
  """OLMo 3 7B."""

  CONFIG = {
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


@experiment_registry.register
class Phi3(fine_tuning.HuggingFaceLm):
  """Phi-3 mini for 4k tokens, 3.8B."""

  CONFIG = {
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


@experiment_registry.register
class Phi4(fine_tuning.HuggingFaceLm):
  """Phi-4, 14.7B."""

  CONFIG = {
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


@experiment_registry.register
class SmolLM3(fine_tuning.HuggingFaceLm):
  """SmolLM3 3B."""

  CONFIG = {
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


@experiment_registry.register
class Glm4(fine_tuning.HuggingFaceLm):
  """GLM-4 9B of the releases 0414."""

  CONFIG = {
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


@experiment_registry.register
class Granite(fine_tuning.HuggingFaceLm):
  """Granite 3.1 2B."""

  CONFIG = {
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


@experiment_registry.register
class Gpt2(fine_tuning.HuggingFaceLm):
  """GPT-2 with 124M parameters."""

  CONFIG = {
    'model_type': 'gpt2',
    'vocab_size': 50257,
    'n_positions': 1024,
    'n_embd': 768,
    'n_layer': 12,
    'n_head': 12,
    'bos_token_id': 50256,
    'eos_token_id': 50256,
  }

  def validate(self) -> None:
    """Checks the constants.

    Raises:
      ValueError: As for other models, or texts are longer than the table of
        position embeddings.
    """
    super().validate()
    config = self.model_config()
    families.read_model(config)
    for name in ('MAX_SEQ_LEN', 'DECODE_SEQ_LEN'):
      length = getattr(self, name)
      if length > config['n_positions']:
        raise ValueError(
          f'{name} must be at most {config["n_positions"]}, the n_positions of'
          f' config.json, got {length}; the model has no embedding of later'
          ' positions'
        )


@experiment_registry.register
class T5(sequence_fine_tuning.HuggingFaceSequenceModel):
  """T5 small."""

  CONFIG = {
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


@experiment_registry.register
class T5V1_1(sequence_fine_tuning.HuggingFaceSequenceModel):
  """T5 1.1 small."""

  CONFIG = {
    **T5.CONFIG,
    'd_ff': 1024,
    'num_layers': 8,
    'num_heads': 6,
    'feed_forward_proj': 'gated-gelu',
    'tie_word_embeddings': False,
  }
