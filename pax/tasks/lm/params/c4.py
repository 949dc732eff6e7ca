# SPDX-License-Identifier: Apache-2.0
"""Language models on C4, from 1B parameters to GPT-3 as MLPerf trains it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from pax import base_experiment, experiment_registry, tasks_lib
from pax.tasks.lm import adam_params, gpt3
from pax.tasks.lm.c4_data import C4UnsupervisedDataset
from pax.tasks.lm.early_stopping import EarlyStoppingFn
from pax.tasks.lm.params import lm_cloud
from praxis import pax_fiddle
from praxis.layers import activations
from praxis.layers.checkpoint_policy import AutodiffCheckpointType

Config = pax_fiddle.Config
TaskConfig = Config[tasks_lib.SingleTask]

GPT_EOS_ID = gpt3.GPT_EOS_ID
TransformerLmSpmdAdam = adam_params.TransformerLmSpmdAdam
TransformerLmSpmdPipelineAdam = adam_params.TransformerLmSpmdPipelineAdam
set_adam_and_learning_rate_schedule = (
  adam_params.set_adam_and_learning_rate_schedule
)


def configure_gpt3_task(cls: Any, task_p: TaskConfig) -> TaskConfig:
  """Makes a task's model a GPT-3 that is trained to TARGET_LOG_PPLX.

  Unless the task has another `early_stopping_fn`; see `gpt3` for the model.
  """
  gpt3.configure_gpt3_task(cls, task_p)
  if task_p.early_stopping_fn is None:
    task_p.early_stopping_fn = Config(
      EarlyStoppingFn, target_log_pplx=cls.TARGET_LOG_PPLX
    )
  return task_p


@experiment_registry.register
class LmCloudSpmdAdam(TransformerLmSpmdAdam, lm_cloud.SyntheticDataset):
  """2 layers of dimension 2048 (0.2B) on 8 devices, on synthetic data."""

  NUM_LAYERS = 2
  MODEL_DIMS = 2048
  HIDDEN_DIMS = MODEL_DIMS * 4
  ACTIVATION_CLS = activations.GELU

  ICI_MESH_SHAPE = [1, 4, 2]


@experiment_registry.register
class LmCloudSpmdAdamLimitSteps(lm_cloud.LimitSteps, LmCloudSpmdAdam):
  """The same for 4000 steps."""

  NUM_TRAIN_STEPS = 4000


class _C4Lm(C4UnsupervisedDataset):
  """What language models on C4 have in common."""

  NUM_LAYERS = 24
  MODEL_DIMS = 2048
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 32
  DIMS_PER_HEAD = None
  VOCAB_SIZE = 32128
  ACTIVATION_CLS = activations.GELU
  USE_GATED_ACTIVATION = False

  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_DOT_FOR_MLPERF_200B

  CHECKPOINT_EVERY_N_STEPS = 1000

  def task(self) -> TaskConfig:
    task_p = super().task()
    task_p.model.decoder_tpl.set(eos_id=GPT_EOS_ID, seqlen=self.MAX_SEQ_LEN)
    return task_p


@experiment_registry.register
class C4SpmdAdam(_C4Lm, TransformerLmSpmdAdam):
  """24 layers of dimension 2048 (1.3B) on 8 devices."""

  ICI_MESH_SHAPE = [1, 4, 2]


@experiment_registry.register
class C4SpmdPipelineAdam(_C4Lm, TransformerLmSpmdPipelineAdam):
  """The same in two stages, on 8 devices."""

  ICI_MESH_SHAPE = [2, 1, 2, 2]
  EMB_W_DATA_DIMS = ('replica', 'data')
  NUM_STAGES = 2
  MICROBATCH_SIZE = 2


class _Gpt3(base_experiment.BaseExperiment):
  """GPT-3 with 175B parameters, as published, for 1536 rows a step.

  References: GPT-3, https://arxiv.org/abs/2005.14165
  """

  NUM_LAYERS = 96
  MODEL_DIMS = 12288
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 96
  DIMS_PER_HEAD = None
  VOCAB_SIZE = 50257
  SEPARATE_EMBEDDING = False
  TRAINABLE_POSITION_EMB = True
  TRAINABLE_PE_MAX_SEQ_LEN = 16384
  # Logits are as they come.
  ATTEN_LOGIT_CAP = -1.0
  LAYERNORM_EPSILON = 1e-5

  MAX_SEQ_LEN = 2048
  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_NOTHING

  LEARNING_RATE = 6e-5
  WEIGHT_DECAY = 0.1
  ADAM_BETA1 = 0.9
  ADAM_BETA2 = 0.95
  ADAM_EPSILON = 1e-8
  # Updates are as large as they come.
  ADAM_CLIP_THRESHOLD = -1.0
  CLIP_GRADIENT_NORM_TO_VALUE = 1.0
  LR_SCHEDULE = 'linear_rampup_cosine_decay'
  LR_COS_WARMUP = 265
  LR_COS_DECAY_START = LR_COS_WARMUP + 1
  LR_COS_DECAY_END = 108600
  LR_COS_MIN_RATIO = 0.1
  LR_COS_MAX = 1.0
  # Training ends when the validation set is predicted so well.
  TARGET_LOG_PPLX = 2.69
  EVAL_INTERVAL_STEPS = 100
  SUMMARY_INTERVAL_STEPS = 10
  CHECKPOINT_EVERY_N_STEPS = 100
  CHECKPOINT_MAX_TO_KEEP = 10

  def task(self) -> TaskConfig:
    return configure_gpt3_task(self, super().task())


class C4SpmdGpt3AdamOrgHP(_Gpt3, C4SpmdAdam):
  """GPT-3 over a mesh."""

  USE_REPEATED_LAYER = True


@experiment_registry.register
class C4SpmdGpt3AdamOrgHPBS1p5k1536Replicas(C4SpmdGpt3AdamOrgHP):
  """GPT-3 in float32 on 1536 devices, 1536 rows a step.

  The vocabulary is padded to a size that hardware likes.
  """

  VOCAB_SIZE = 51200

  ICI_MESH_SHAPE = [1, 64, 24]

  EVAL_INTERVAL_STEPS = 25
  SUMMARY_INTERVAL_STEPS = 1
  CHECKPOINT_MAX_TO_KEEP = 100


class C4SpmdPipelineGpt3AdamOrgHP(_Gpt3, C4SpmdPipelineAdam):
  """GPT-3 as a pipeline."""

  USE_REPEATED_LAYER = False


class C4SpmdPipelineGpt3AdamMLPerfHP(C4SpmdPipelineGpt3AdamOrgHP):
  """GPT-3 by the rules of MLPerf: the schedule follows from the batch."""

  VOCAB_SIZE = 51200

  LEARNING_RATE = None
  LR_COS_WARMUP = None
  LR_COS_DECAY_START = None
  LR_COS_DECAY_END = None
  # For subclasses to set.
  EVAL_INTERVAL_STEPS = None
  SUMMARY_INTERVAL_STEPS = 1
  CHECKPOINT_EVERY_N_STEPS = None
  CHECKPOINT_MAX_TO_KEEP = 100


@experiment_registry.register
class C4SpmdPipelineGpt3AdamOrgHPBS1p5k768Replicas(C4SpmdPipelineGpt3AdamOrgHP):
  """GPT-3 in float32 on 768 devices, 1536 rows a step, schedule as published.

  Upstream misspells MICROBATCH_SIZE here and runs microbatches of 2.
  """

  VOCAB_SIZE = 51200

  PERCORE_BATCH_SIZE = 2
  ICI_MESH_SHAPE = [8, 1, 8, 12]
  NUM_STAGES = 8
  MICROBATCH_SIZE = 8

  EVAL_INTERVAL_STEPS = 25
  SUMMARY_INTERVAL_STEPS = 1
  CHECKPOINT_EVERY_N_STEPS = 50
  CHECKPOINT_MAX_TO_KEEP = 100


@experiment_registry.register
class C4SpmdPipelineGpt3AdamMLPerfHPBS1p5k768Replicas(
  C4SpmdPipelineGpt3AdamMLPerfHP
):
  """GPT-3 in float32 on 768 devices, 1536 rows a step."""

  PERCORE_BATCH_SIZE = 2
  ICI_MESH_SHAPE = [8, 1, 8, 12]
  NUM_STAGES = 8
  MICROBATCH_SIZE = 8

  EVAL_INTERVAL_STEPS = 16
  CHECKPOINT_EVERY_N_STEPS = EVAL_INTERVAL_STEPS * 2


@experiment_registry.register
class C4SpmdPipelineGpt3AdamMLPerfHPBS2k512Replicas(
  C4SpmdPipelineGpt3AdamMLPerfHP
):
  """GPT-3 in float32 on 512 devices, 2048 rows a step."""

  PERCORE_BATCH_SIZE = 4
  ICI_MESH_SHAPE = [8, 1, 8, 8]
  NUM_STAGES = 8
  MICROBATCH_SIZE = 8
  STREAM_IO = True

  EVAL_INTERVAL_STEPS = 12
  CHECKPOINT_EVERY_N_STEPS = EVAL_INTERVAL_STEPS * 2


@experiment_registry.register
class C4SpmdPipelineGpt3AdamMLPerfHPBS3k768Replicas(
  C4SpmdPipelineGpt3AdamMLPerfHP
):
  """GPT-3 in float32 on 768 devices, 3072 rows a step."""

  PERCORE_BATCH_SIZE = 4
  ICI_MESH_SHAPE = [4, 1, 16, 12]
  NUM_STAGES = 4
  MICROBATCH_SIZE = 16
  STREAM_IO = True

  EVAL_INTERVAL_STEPS = 8
  CHECKPOINT_EVERY_N_STEPS = EVAL_INTERVAL_STEPS * 2


@experiment_registry.register
class C4SpmdPipelineGpt3AdamMLPerfHPBS4k1024Replicas(
  C4SpmdPipelineGpt3AdamMLPerfHP
):
  """GPT-3 in float32 on 1024 devices, 4096 rows a step."""

  PERCORE_BATCH_SIZE = 4
  ICI_MESH_SHAPE = [8, 1, 8, 16]
  NUM_STAGES = 8
  MICROBATCH_SIZE = 8
  STREAM_IO = True

  EVAL_INTERVAL_STEPS = 6
  CHECKPOINT_EVERY_N_STEPS = EVAL_INTERVAL_STEPS * 2


@experiment_registry.register
class C4SpmdPipelineGpt3AdamMLPerfHPBS8k1024Replicas(
  C4SpmdPipelineGpt3AdamMLPerfHP
):
  """GPT-3 in float32 on 1024 devices, 8192 rows a step."""

  PERCORE_BATCH_SIZE = 8
  ICI_MESH_SHAPE = [4, 1, 16, 16]
  NUM_STAGES = 4
  MICROBATCH_SIZE = 16
  STREAM_IO = True

  EVAL_INTERVAL_STEPS = 3
  CHECKPOINT_EVERY_N_STEPS = EVAL_INTERVAL_STEPS * 2


class _C4SpmdBfloat16(C4SpmdAdam):
  """A scan of layers in bfloat16 that keeps nothing for the backward pass."""

  DIMS_PER_HEAD = 128
  VOCAB_SIZE = 32000

  FPROP_DTYPE = jnp.bfloat16
  USE_REPEATED_LAYER = True
  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_NOTHING

  SUMMARY_INTERVAL_STEPS = 10


@experiment_registry.register
class C4Spmd1BAdam4Replicas(_C4SpmdBfloat16):
  """1.1B parameters on 4 devices, 128 rows a step."""

  NUM_LAYERS = 13
  MODEL_DIMS = 2560
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 20

  PERCORE_BATCH_SIZE = 32
  ICI_MESH_SHAPE = [1, 4, 1]


@experiment_registry.register
class C4Spmd1BAdam4ReplicasLimitSteps(
  lm_cloud.LimitSteps, C4Spmd1BAdam4Replicas
):
  """The same for 15000 steps."""

  NUM_TRAIN_STEPS = 15000


@experiment_registry.register
class C4Spmd2BAdam4Replicas(_C4SpmdBfloat16):
  """2.1B parameters on 4 devices, 128 rows a step."""

  NUM_LAYERS = 18
  MODEL_DIMS = 3072
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 24

  PERCORE_BATCH_SIZE = 32
  ICI_MESH_SHAPE = [1, 4, 1]


@experiment_registry.register
class C4Spmd16BAdam32Replicas(_C4SpmdBfloat16):
  """16.5B parameters on 32 devices, 512 rows a step."""

  NUM_LAYERS = 36
  MODEL_DIMS = 6144
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 48

  PERCORE_BATCH_SIZE = 16
  ICI_MESH_SHAPE = [1, 16, 2]


@experiment_registry.register
class C4Spmd32BAdam64Replicas(_C4SpmdBfloat16):
  """32.5B parameters on 64 devices, 512 rows a step."""

  NUM_LAYERS = 40
  MODEL_DIMS = 8192
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 64

  PERCORE_BATCH_SIZE = 8
  ICI_MESH_SHAPE = [1, 16, 4]


@experiment_registry.register
class C4SpmdGpt3L16AdamOrgHP(C4SpmdGpt3AdamOrgHP):
  """16 of GPT-3's layers (30B) in bfloat16 on 64 devices, 192 rows a step."""

  NUM_LAYERS = 16

  PERCORE_BATCH_SIZE = 3
  ICI_MESH_SHAPE = [1, 16, 4]
  FPROP_DTYPE = jnp.bfloat16

  EVAL_INTERVAL_STEPS = 25000


@experiment_registry.register
class C4SpmdPipelineGpt3SmallAdam8Replicas(C4SpmdPipelineGpt3AdamOrgHP):
  """2.9B parameters in two stages on 8 devices, 512 rows a step.

  The size of GPT-3 XL but for the dimension, which is 3072 instead of 2048.
  """

  NUM_LAYERS = 24
  MODEL_DIMS = 3072
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 24
  DIMS_PER_HEAD = 128
  VOCAB_SIZE = 51200

  PERCORE_BATCH_SIZE = 64
  MICROBATCH_SIZE = 8
  FPROP_DTYPE = jnp.bfloat16

  LEARNING_RATE = 2.0e-4
  EVAL_INTERVAL_STEPS = 10
  SUMMARY_INTERVAL_STEPS = 5
  CHECKPOINT_EVERY_N_STEPS = 200
  CHECKPOINT_MAX_TO_KEEP = 1000


@experiment_registry.register
class C4SpmdPipelineGpt3SmallAdam64Replicas(
  C4SpmdPipelineGpt3SmallAdam8Replicas
):
  """The same in four stages on 64 devices, a v4-128.

  Upstream's README names it and shows its loss; its code is lost.
  """

  PERCORE_BATCH_SIZE = 8
  ICI_MESH_SHAPE = [4, 1, 4, 4]
  NUM_STAGES = 4
  MICROBATCH_SIZE = 16

  EVAL_INTERVAL_STEPS = 100
  SUMMARY_INTERVAL_STEPS = 1
