# SPDX-License-Identifier: Apache-2.0
"""LLaMA as Meta's checkpoints have it."""

from __future__ import annotations

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
  """LLaMA, to be given data and the sizes of a model.

  Upstream registers it, though it has no data and cannot be made.

  References: LLaMA, https://arxiv.org/abs/2302.13971, and LLaMA 2,
  https://arxiv.org/abs/2307.09288
  """

  MODEL_CLASS = models.CustomMetricsLM

  BOS_ID = 1
  EOS_ID = 2

  # Evaluates what it is given; more steps fine-tune it.
  MAX_STEPS = 0
  # A folder of safetensors, as Hugging Face publishes LLaMA, to start from.
  HUGGINGFACE_PATH = None

  NUM_LAYERS = 32
  VOCAB_SIZE = 32000
  DIMS_PER_HEAD = 128
  NUM_HEADS = 32
  MODEL_DIMS = 4096
  HIDDEN_DIMS = MODEL_DIMS * 4
  FPROP_DTYPE = jnp.bfloat16
  # Whether NUM_KV_HEADS heads of keys and values serve all heads.
  USE_MQA = False
  NUM_KV_HEADS = 1

  PACKED_INPUT = False
  SEPARATE_EMBEDDING = True
  SOFTMAX_CAP_LOGITS = None
  ATTEN_LOGIT_CAP = 0.0
  ACTIVATION_CLS = activations.SiLU
  USE_GATED_ACTIVATION = True
  RMS_NORM_EPSILON = 1e-5

  # A subclass has the mesh of its devices.
  ICI_MESH_SHAPE = [1, 1, 1]
  DCN_MESH_SHAPE = None

  def task(self) -> Config[tasks_lib.SingleTask]:
    task_p = super().task()
    task_p.train.num_train_steps = self.MAX_STEPS
    if self.HUGGINGFACE_PATH:
      task_p.train.set(
        external_checkpoint_path=self.HUGGINGFACE_PATH,
        external_checkpoint_handler=llama_checkpoints.HuggingFaceHandler.of(
          self
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
