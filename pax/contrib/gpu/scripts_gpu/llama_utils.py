# SPDX-License-Identifier: Apache-2.0
"""LLaMA with the variables of the published checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp

from pax import tasks_lib
from pax.contrib.gpu.scripts_gpu import llama_checkpoints, saxml_layers
from pax.tasks.lm import adam_params, llama
from praxis import pax_fiddle
from praxis.contrib.gpu.scripts_gpu import models
from praxis.layers import activations, multi_query_attention
from praxis.layers.transformer_models import stack_configs

Config = pax_fiddle.Config


class BaseLLaMA(adam_params.TransformerLmSpmdAdam):
  """Base of the LLaMA experiments; subclasses add data and sizes.

  Upstream registers it, although it has no data.

  References: LLaMA, https://arxiv.org/abs/2302.13971, and LLaMA 2,
  https://arxiv.org/abs/2307.09288
  """

  MODEL_CLASS = models.CustomMetricsLM
  VOCAB_SIZE = 32000
  BOS_ID = 1
  EOS_ID = 2
  PACKED_INPUT = False

  MODEL_DIMS = 4096
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 32
  DIMS_PER_HEAD = 128
  NUM_LAYERS = 32
  # Whether the heads share NUM_KV_HEADS heads of keys and values.
  USE_MQA = False
  NUM_KV_HEADS = 1

  USE_GATED_ACTIVATION = True
  ACTIVATION_CLS = activations.SiLU
  RMS_NORM_EPSILON = 1e-5
  # Logits are not capped.
  ATTEN_LOGIT_CAP = 0.0
  SOFTMAX_CAP_LOGITS = None
  SEPARATE_EMBEDDING = True
  FPROP_DTYPE = jnp.bfloat16

  # Set by the subclasses.
  ICI_MESH_SHAPE = [1, 1, 1]
  DCN_MESH_SHAPE: Sequence[int] | None = None

  # 0 evaluates; more steps fine-tune.
  MAX_STEPS = 0
  # Folder of the safetensors files that Hugging Face publishes, to initialize
  # the model from.
  HUGGINGFACE_PATH: str | None = None

  def task(self) -> Config[tasks_lib.SingleTask]:
    task_p = super().task()
    task_p.train.num_train_steps = self.MAX_STEPS
    if self.HUGGINGFACE_PATH:
      task_p.train.set(
        external_checkpoint_path=self.HUGGINGFACE_PATH,
        external_checkpoint_handler=(
          llama_checkpoints.HuggingFaceHandler.from_experiment(self)
        ),
      )
    lm_p = task_p.model.lm_tpl
    llama.configure_llama(lm_p, self.RMS_NORM_EPSILON)
    for block_p in stack_configs.stacked_transformers(
      lm_p.stacked_transformer_tpl
    ):
      layer_p = block_p.transformer_layer_params_tpl
      if self.USE_MQA:
        layer_p.tr_atten_tpl = Config(
          multi_query_attention.MultiQueryDotProductAttention,
          num_kv_heads=self.NUM_KV_HEADS,
        )
      layer_p.tr_atten_tpl.set(
        use_bias=False,
        internal_enable_per_dim_scale=False,
        use_rotary_position_emb=True,
        rotary_position_emb_tpl=Config(saxml_layers.LLaMARotaryEmbedding),
      )
    self._set_sharding(task_p)
    return task_p
