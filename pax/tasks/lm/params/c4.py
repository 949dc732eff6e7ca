# SPDX-License-Identifier: Apache-2.0
"""Language models on C4, from 1B parameters to MLPerf's GPT-3."""

from __future__ import annotations

from typing import Protocol

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


class C4Gpt3Constants(gpt3.Gpt3Constants, Protocol):
  """Constants of an experiment with GPT-3 on C4."""

  # Log-perplexity at which training stops; None never stops.
  TARGET_LOG_PPLX: float | None


def configure_gpt3_task(cls: C4Gpt3Constants, task_p: TaskConfig) -> TaskConfig:
  """Sets GPT-3 and early stopping at TARGET_LOG_PPLX; returns the task.

  An `early_stopping_fn` of the task is kept.
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

  MODEL_DIMS = 2048
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_LAYERS = 2
  ACTIVATION_CLS = activations.GELU

  ICI_MESH_SHAPE = [1, 4, 2]


@experiment_registry.register
class LmCloudSpmdAdamLimitSteps(lm_cloud.LimitSteps, LmCloudSpmdAdam):
  """LmCloudSpmdAdam for 4000 steps."""

  NUM_TRAIN_STEPS = 4000


class _C4Lm(C4UnsupervisedDataset):
  """Common settings of the language models on C4."""

  MODEL_DIMS = 2048
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS: int | None = 32
  DIMS_PER_HEAD: int | None = None
  NUM_LAYERS = 24
  VOCAB_SIZE = 32128
  USE_GATED_ACTIVATION = False
  ACTIVATION_CLS: type[activations.BaseActivation] = activations.GELU
  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_DOT_FOR_MLPERF_200B

  CHECKPOINT_EVERY_N_STEPS: int | None = 1000

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
  """C4SpmdAdam in two stages, on 8 devices."""

  NUM_STAGES = 2
  MICROBATCH_SIZE = 2
  ICI_MESH_SHAPE = [2, 1, 2, 2]
  EMB_W_DATA_DIMS = ('replica', 'data')


class _Gpt3(base_experiment.BaseExperiment):
  """GPT-3 175B as published, with the schedule for batch size 1536.

  References: GPT-3, https://arxiv.org/abs/2005.14165
  """

  # Set by `AdamLm`.
  EMBEDDING_LOOKUP_STYLE: str

  MODEL_DIMS = 12288
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS: int | None = 96
  DIMS_PER_HEAD: int | None = None
  NUM_LAYERS = 96
  VOCAB_SIZE = 50257
  MAX_SEQ_LEN = 2048
  TRAINABLE_PE_MAX_SEQ_LEN = 16384
  TRAINABLE_POSITION_EMB = True
  SEPARATE_EMBEDDING = False
  LAYERNORM_EPSILON = 1e-5
  # Negative: attention logits are not capped.
  ATTEN_LOGIT_CAP = -1.0
  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_NOTHING

  LEARNING_RATE: float | None = 6e-5
  LR_SCHEDULE = 'linear_rampup_cosine_decay'
  LR_COS_MAX = 1.0
  LR_COS_MIN_RATIO = 0.1
  LR_COS_WARMUP: int | None = 265
  LR_COS_DECAY_START: int | None = 266
  LR_COS_DECAY_END: int | None = 108600

  WEIGHT_DECAY = 0.1
  CLIP_GRADIENT_NORM_TO_VALUE = 1.0
  # Negative: updates are not clipped.
  ADAM_CLIP_THRESHOLD: float | None = -1.0
  ADAM_EPSILON: float | None = 1e-8
  ADAM_BETA1: float | None = 0.9
  ADAM_BETA2: float | None = 0.95

  # Log-perplexity on the validation set at which training stops; None never
  # stops.
  TARGET_LOG_PPLX: float | None = 2.69
  CHECKPOINT_MAX_TO_KEEP = 10
  CHECKPOINT_EVERY_N_STEPS: int | None = 100
  SUMMARY_INTERVAL_STEPS = 10
  EVAL_INTERVAL_STEPS: int | None = 100

  def task(self) -> TaskConfig:
    return configure_gpt3_task(self, super().task())


class C4SpmdGpt3AdamOrgHP(_Gpt3, C4SpmdAdam):
  """GPT-3 over a mesh."""

  USE_REPEATED_LAYER = True


@experiment_registry.register
class C4SpmdGpt3AdamOrgHPBS1p5k1536Replicas(C4SpmdGpt3AdamOrgHP):
  """GPT-3 in float32 on 1536 devices, batch size 1536.

  The vocabulary is padded to a multiple of 128.
  """

  VOCAB_SIZE = 51200

  ICI_MESH_SHAPE = [1, 64, 24]

  EVAL_INTERVAL_STEPS = 25
  SUMMARY_INTERVAL_STEPS = 1
  CHECKPOINT_MAX_TO_KEEP = 100


class C4SpmdPipelineGpt3AdamOrgHP(_Gpt3, C4SpmdPipelineAdam):
  """GPT-3 with pipeline parallelism."""

  USE_REPEATED_LAYER = False


class C4SpmdPipelineGpt3AdamMLPerfHP(C4SpmdPipelineGpt3AdamOrgHP):
  """GPT-3 by the rules of MLPerf: the batch size determines the schedule."""

  VOCAB_SIZE = 51200

  # None: derived from the batch size.
  LR_COS_WARMUP = None
  LR_COS_DECAY_START = None
  LR_COS_DECAY_END = None
  LEARNING_RATE = None

  # Set by the subclasses.
  CHECKPOINT_EVERY_N_STEPS: int | None = None
  EVAL_INTERVAL_STEPS: int | None = None

  CHECKPOINT_MAX_TO_KEEP = 100
  SUMMARY_INTERVAL_STEPS = 1


@experiment_registry.register
class C4SpmdPipelineGpt3AdamOrgHPBS1p5k768Replicas(C4SpmdPipelineGpt3AdamOrgHP):
  """GPT-3 in float32 on 768 devices, batch size 1536, published schedule.

  Upstream misspells MICROBATCH_SIZE here and runs microbatches of 2.
  """

  VOCAB_SIZE = 51200

  NUM_STAGES = 8
  MICROBATCH_SIZE = 8
  PERCORE_BATCH_SIZE = 2
  ICI_MESH_SHAPE = [8, 1, 8, 12]

  SUMMARY_INTERVAL_STEPS = 1
  EVAL_INTERVAL_STEPS = 25
  CHECKPOINT_EVERY_N_STEPS = 50
  CHECKPOINT_MAX_TO_KEEP = 100


@experiment_registry.register
class C4SpmdPipelineGpt3AdamMLPerfHPBS1p5k768Replicas(
  C4SpmdPipelineGpt3AdamMLPerfHP
):
  """GPT-3 in float32 on 768 devices, batch size 1536."""

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
  """GPT-3 in float32 on 512 devices, batch size 2048."""

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
  """GPT-3 in float32 on 768 devices, batch size 3072."""

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
  """GPT-3 in float32 on 1024 devices, batch size 4096."""

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
  """GPT-3 in float32 on 1024 devices, batch size 8192."""

  PERCORE_BATCH_SIZE = 8
  ICI_MESH_SHAPE = [4, 1, 16, 16]
  NUM_STAGES = 4
  MICROBATCH_SIZE = 16
  STREAM_IO = True

  EVAL_INTERVAL_STEPS = 3
  CHECKPOINT_EVERY_N_STEPS = EVAL_INTERVAL_STEPS * 2


class _C4SpmdBfloat16(C4SpmdAdam):
  """Common settings of models in bfloat16 with full rematerialization."""

  DIMS_PER_HEAD = 128
  VOCAB_SIZE = 32000

  FPROP_DTYPE = jnp.bfloat16
  USE_REPEATED_LAYER = True
  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_NOTHING

  SUMMARY_INTERVAL_STEPS = 10


@experiment_registry.register
class C4Spmd1BAdam4Replicas(_C4SpmdBfloat16):
  """1.1B parameters on 4 devices, batch size 128."""

  MODEL_DIMS = 2560
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 20
  NUM_LAYERS = 13

  PERCORE_BATCH_SIZE = 32
  ICI_MESH_SHAPE = [1, 4, 1]
  # Kernels read gathered weights of this size from on-chip memory.
  COMPILER_OPTIONS = {'tpu': {'xla_enable_async_all_gather': False}}


@experiment_registry.register
class C4Spmd1BAdam4ReplicasLimitSteps(
  lm_cloud.LimitSteps, C4Spmd1BAdam4Replicas
):
  """C4Spmd1BAdam4Replicas for 15000 steps."""

  NUM_TRAIN_STEPS = 15000


@experiment_registry.register
class C4Spmd2BAdam4Replicas(_C4SpmdBfloat16):
  """2.1B parameters on 4 devices, batch size 128."""

  MODEL_DIMS = 3072
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 24
  NUM_LAYERS = 18

  PERCORE_BATCH_SIZE = 32
  ICI_MESH_SHAPE = [1, 4, 1]


@experiment_registry.register
class C4Spmd16BAdam32Replicas(_C4SpmdBfloat16):
  """16.5B parameters on 32 devices, batch size 512."""

  MODEL_DIMS = 6144
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 48
  NUM_LAYERS = 36

  PERCORE_BATCH_SIZE = 16
  ICI_MESH_SHAPE = [1, 16, 2]


@experiment_registry.register
class C4Spmd32BAdam64Replicas(_C4SpmdBfloat16):
  """32.5B parameters on 64 devices, batch size 512."""

  MODEL_DIMS = 8192
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 64
  NUM_LAYERS = 40

  PERCORE_BATCH_SIZE = 8
  ICI_MESH_SHAPE = [1, 16, 4]


@experiment_registry.register
class C4SpmdGpt3L16AdamOrgHP(C4SpmdGpt3AdamOrgHP):
  """16 of GPT-3's layers (30B) in bfloat16 on 64 devices, batch size 192."""

  NUM_LAYERS = 16

  PERCORE_BATCH_SIZE = 3
  ICI_MESH_SHAPE = [1, 16, 4]
  FPROP_DTYPE = jnp.bfloat16

  EVAL_INTERVAL_STEPS = 25000


@experiment_registry.register
class C4SpmdPipelineGpt3SmallAdam8Replicas(C4SpmdPipelineGpt3AdamOrgHP):
  """2.9B parameters in two stages on 8 devices, batch size 512.

  The sizes of GPT-3 XL, except for a model dimension of 3072 instead of 2048.
  """

  MODEL_DIMS = 3072
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 24
  DIMS_PER_HEAD = 128
  NUM_LAYERS = 24
  VOCAB_SIZE = 51200

  PERCORE_BATCH_SIZE = 64
  MICROBATCH_SIZE = 8
  FPROP_DTYPE = jnp.bfloat16

  LEARNING_RATE = 2.0e-4
  CHECKPOINT_MAX_TO_KEEP = 1000
  CHECKPOINT_EVERY_N_STEPS = 200
  SUMMARY_INTERVAL_STEPS = 5
  EVAL_INTERVAL_STEPS = 10


@experiment_registry.register
class C4SpmdPipelineGpt3SmallAdam64Replicas(
  C4SpmdPipelineGpt3SmallAdam8Replicas
):
  """2.9B parameters in four stages on 64 devices, a v4-128.

  Upstream's README reports its loss; upstream's code does not contain it.
  """

  NUM_STAGES = 4
  MICROBATCH_SIZE = 16
  PERCORE_BATCH_SIZE = 8
  ICI_MESH_SHAPE = [4, 1, 4, 4]

  EVAL_INTERVAL_STEPS = 100
  SUMMARY_INTERVAL_STEPS = 1
