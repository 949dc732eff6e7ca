# SPDX-License-Identifier: Apache-2.0
"""GPT-3, GLaM and LLaMA on NVIDIA GPUs, 8 per node."""

from __future__ import annotations

import math

import jax.numpy as jnp

from pax import experiment_registry, tasks_lib
from pax.contrib.gpu.scripts_gpu.checkpoint_utils import CheckpointRestoreMixin
from pax.contrib.gpu.scripts_gpu.llama_utils import BaseLLaMA
from pax.contrib.gpu.scripts_gpu.lora_utils import LoRAMixin
from pax.contrib.gpu.scripts_gpu.tasks import (
  BoolQDataset,
  LambadaDataset,
  PileUnsupervisedDataset,
)
from pax.tasks.lm import adam_params, gpt3, moe_language_models
from pax.tasks.lm.params import lm_cloud
from praxis import base_layer, pax_fiddle
from praxis.contrib.gpu.scripts_gpu import models
from praxis.layers import activations
from praxis.layers.checkpoint_policy import AutodiffCheckpointType
from praxis.layers.transformer_models import stack_configs

TaskConfig = pax_fiddle.Config[tasks_lib.SingleTask]
WeightInit = base_layer.WeightInit

GPT_EOS_ID = gpt3.GPT_EOS_ID
configure_gpt3_task = gpt3.configure_gpt3_task


class GPT126MBase(adam_params.TransformerLmSpmdAdam):
  """GPT-3 with 126M parameters on 8 nodes."""

  MODEL_CLASS = models.CustomMetricsLM
  MODEL_DIMS = 768
  HIDDEN_DIMS = 3072
  NUM_HEADS = 12
  DIMS_PER_HEAD: int | None = 64
  NUM_LAYERS = 12
  # GPT-2's 50257 tokens, padded to a multiple of 128.
  VOCAB_SIZE = 50304
  TRAINABLE_POSITION_EMB = True
  ACTIVATION_CLS = activations.GELU
  LAYERNORM_EPSILON = 1e-5
  USE_BIAS = True
  # Negative: attention logits are not capped.
  ATTEN_LOGIT_CAP = -1.0
  # Standard deviations of initial weights.
  SOFTMAX_INIT_STD = 0.023
  INIT_STD = 0.023

  PERCORE_BATCH_SIZE: float = 4
  MAX_SEQ_LEN = 2048
  ICI_MESH_SHAPE = [8, 1, 1]
  DCN_MESH_SHAPE = [8, 1, 1]
  FPROP_DTYPE = jnp.bfloat16

  MAX_STEPS = 600000
  LEARNING_RATE = 6e-4
  LR_SCHEDULE = 'linear_rampup_cosine_decay'
  LR_COS_WARMUP = 636
  LR_COS_DECAY_START = LR_COS_WARMUP + 1
  LR_COS_DECAY_END = 500000

  WEIGHT_DECAY = 0.1
  CLIP_GRADIENT_NORM_TO_VALUE = 1.0
  # Negative: updates are not clipped.
  ADAM_CLIP_THRESHOLD = -1.0
  ADAM_EPSILON = 1e-8
  ADAM_BETA2 = 0.95

  def task(self) -> TaskConfig:
    task_p = gpt3.configure_gpt3_task(self, super().task())
    task_p.train.set(
      num_train_steps=self.MAX_STEPS,
      compute_steps_per_sec_interval_steps=self.SUMMARY_INTERVAL_STEPS,
    )
    model_p = task_p.model.set(
      params_init=WeightInit.Gaussian(self.INIT_STD),
      apply_eval_sample_weights=True,
    )
    lm_p = model_p.lm_tpl
    lm_p.position_emb_tpl.max_seq_length = self.MAX_SEQ_LEN
    lm_p.softmax_tpl.params_init = WeightInit.Gaussian(self.SOFTMAX_INIT_STD)
    lm_p.final_ln_tpl.reductions_in_fp32 = True
    for block_p in stack_configs.stacked_transformers(
      lm_p.stacked_transformer_tpl
    ):
      layer_p = block_p.transformer_layer_params_tpl
      for norm_p in (layer_p.ln_tpl, layer_p.tr_fflayer_tpl.ln_tpl):
        norm_p.reductions_in_fp32 = True
    return task_p


class GPT5BBase(GPT126MBase):
  """GPT-3 with 5B parameters on 32 nodes."""

  MODEL_DIMS = 4096
  HIDDEN_DIMS = 16384
  NUM_HEADS = 32
  DIMS_PER_HEAD = 128
  NUM_LAYERS = 24
  INIT_STD = 0.01
  SOFTMAX_INIT_STD = 0.01

  PERCORE_BATCH_SIZE: float = 8
  ICI_MESH_SHAPE = [1, 8, 1]
  DCN_MESH_SHAPE = [1, 32, 1]
  USE_REPEATED_LAYER = True
  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_DOT_WITH_NO_BATCH_DIM

  MAX_STEPS = 75000
  LEARNING_RATE = 1.6e-4
  LR_COS_WARMUP = 115
  LR_COS_DECAY_START = LR_COS_WARMUP + 1
  LR_COS_DECAY_END = 62500

  CHECKPOINT_EVERY_N_STEPS = 250
  SUMMARY_INTERVAL_STEPS = 10

  def task(self) -> TaskConfig:
    task_p = super().task()
    for block_p in stack_configs.stacked_transformers(
      task_p.model.lm_tpl.stacked_transformer_tpl
    ):
      block_p.input_dropout_prob = 0.1
    return task_p


class GPT175BBase(GPT126MBase):
  """GPT-3 175B as published (174,604,259,328 parameters), on 32 nodes.

  References: table 2.1 of https://arxiv.org/abs/2005.14165
  """

  MODEL_DIMS = 12288
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 96
  DIMS_PER_HEAD = None
  NUM_LAYERS = 96
  VOCAB_SIZE = 50257

  PERCORE_BATCH_SIZE: float = 6
  ICI_MESH_SHAPE = [1, 8, 1]
  DCN_MESH_SHAPE = [1, 32, 1]
  USE_REPEATED_LAYER = True

  MAX_STEPS = 75000
  LEARNING_RATE = 2e-5
  # The schedule for batch size 1536.
  LR_COS_WARMUP = 265
  LR_COS_DECAY_START = LR_COS_WARMUP + 1
  LR_COS_DECAY_END = 108600

  CHECKPOINT_EVERY_N_STEPS = 100
  SUMMARY_INTERVAL_STEPS = 10


@experiment_registry.register
class Synthetic126M(GPT126MBase, lm_cloud.SyntheticDataset):
  """GPT-3 126M for 100 steps on synthetic data, to measure speed."""

  MAX_STEPS = 100


@experiment_registry.register
class Synthetic5B(GPT5BBase, lm_cloud.SyntheticDataset):
  """GPT-3 5B for 100 steps on synthetic data, to measure speed."""

  MAX_STEPS = 100


@experiment_registry.register
class Synthetic175B(GPT175BBase, lm_cloud.SyntheticDataset):
  """GPT-3 175B for 100 steps on synthetic data, to measure speed."""

  MAX_STEPS = 100


@experiment_registry.register
class Pile126M(GPT126MBase, PileUnsupervisedDataset):
  """GPT-3 126M on the Pile."""


@experiment_registry.register
class Pile5B(GPT5BBase, PileUnsupervisedDataset):
  """GPT-3 5B on the Pile."""


@experiment_registry.register
class Pile175B(GPT175BBase, PileUnsupervisedDataset):
  """GPT-3 175B on the Pile."""


# Former names.
GPT5B = Pile5B
GPT175B = Pile175B


@experiment_registry.register
class Lambada126M(GPT126MBase, LambadaDataset):
  """Evaluates GPT-3 126M on LAMBADA."""

  ICI_MESH_SHAPE = [8, 1, 1]

  def task(self) -> TaskConfig:
    task_p = super().task()
    task_p.train.always_use_train_for_model_init = False
    task_p.model.eval_task = 'lambada'
    return task_p


@experiment_registry.register
class LLaMA7B(BaseLLaMA, BoolQDataset, LoRAMixin, CheckpointRestoreMixin):
  """LLaMA 2 7B as published (6,738,415,616 parameters) on BoolQ, 1 node."""

  HIDDEN_DIMS = 11008
  PERCORE_BATCH_SIZE = 16
  ICI_MESH_SHAPE = [1, 8, 1]
  DCN_MESH_SHAPE = [1, 1, 1]

  def task(self) -> TaskConfig:
    task_p = super().task()
    task_p.train.always_use_train_for_model_init = False
    task_p.model.set(
      apply_eval_sample_weights=True,
      eval_task='boolq',
      boolq_yn_tokens=[self.TRUE_TOKEN, self.FALSE_TOKEN],
    )
    return self.configure_checkpoint_restore(self.configure_lora(task_p))


@experiment_registry.register
class LLaMA13B(LLaMA7B):
  """LLaMA 2 13B as published (13,015,864,320 parameters) on BoolQ, 1 node."""

  MODEL_DIMS = 5120
  HIDDEN_DIMS = 13824
  NUM_HEADS = 40
  NUM_LAYERS = 40

  PERCORE_BATCH_SIZE = 8


@experiment_registry.register
class LLaMA70B(LLaMA7B):
  """LLaMA 2 70B as published (68,976,648,192 parameters) on BoolQ, 2 nodes."""

  MODEL_DIMS = 8192
  HIDDEN_DIMS = 28672
  NUM_HEADS = 64
  NUM_KV_HEADS = 8
  NUM_LAYERS = 80
  USE_MQA = True

  PERCORE_BATCH_SIZE = 4
  DCN_MESH_SHAPE = [1, 2, 1]


class GLaM126M64EBase(GPT126MBase):
  """GLaM 0.1B/64E, with 64 experts in every second layer, on 8 nodes.

  References: table 4 of https://arxiv.org/abs/2112.06905
  """

  NUM_GPUS = 64
  NUM_EXPERTS = 64
  LOAD_BALANCING_WEIGHT = 0.01
  Z_LOSS_WEIGHT = 0.0

  ICI_MESH_SHAPE = [1, NUM_GPUS, 1]
  DCN_MESH_SHAPE = [1, 1, 1]

  @property
  def NUM_GROUPS(self) -> int:  # noqa: N802 (read as a constant)
    """Number of shards of the batch."""
    return math.prod(self.ICI_MESH_SHAPE[:-1] + self.DCN_MESH_SHAPE[:-1])

  def task(self) -> TaskConfig:
    task_p = super().task()
    task_p.train.always_use_train_for_model_init = False
    task_p.model.report_strict_acc = True
    task_p.model.lm_tpl = moe_language_models.glam_lm(
      self,
      load_balance_weight=self.LOAD_BALANCING_WEIGHT / (self.NUM_LAYERS / 2),
      z_loss_weight=self.Z_LOSS_WEIGHT,
      repeat=self.USE_REPEATED_LAYER,
    )
    self._set_sharding(task_p)
    return task_p


class GLaM64B64EBase(GLaM126M64EBase):
  """GLaM 64B/64E (1.1T parameters) on 64 nodes.

  Adam has no first moment; upstream replaces this beta1 of 0 by the default.
  """

  NUM_GPUS = 512
  MODEL_DIMS = 8192
  HIDDEN_DIMS = 32768
  NUM_HEADS = 64
  DIMS_PER_HEAD = 128
  NUM_LAYERS = 64

  MAX_SEQ_LEN = 1024
  ICI_MESH_SHAPE = [1, 1, 8]
  DCN_MESH_SHAPE = [1, NUM_GPUS // 8, 1]
  USE_REPEATED_LAYER = True

  LEARNING_RATE = 2e-5
  ADAM_BETA1 = 0
  ADAM_BETA2 = 0.99
  # The schedule for batch size 1024.
  LR_COS_WARMUP = 398
  LR_COS_DECAY_START = LR_COS_WARMUP + 1
  LR_COS_DECAY_END = 162900
  SUMMARY_INTERVAL_STEPS = 10
  CHECKPOINT_EVERY_N_STEPS = 100
  CHECKPOINT_MAX_TO_KEEP = 2


class PileGLaM126M64E(GLaM126M64EBase, PileUnsupervisedDataset):
  """GLaM 0.1B/64E on the Pile."""


class PileGLaM64B64E(GLaM64B64EBase, PileUnsupervisedDataset):
  """GLaM 64B/64E on the Pile."""


class LambadaGLaM126M64E(GLaM126M64EBase, LambadaDataset):
  """Evaluates GLaM 0.1B/64E on LAMBADA."""


class LambadaGLaM64B64E(GLaM64B64EBase, LambadaDataset):
  """Evaluates GLaM 64B/64E on LAMBADA."""
