# SPDX-License-Identifier: Apache-2.0
"""Language models on synthetic data for NVIDIA GPUs.

A docstring names each value that differs from upstream, and the reason. All
experiments have two options:

USE_CUDNN_FLASH_ATTENTION selects cuDNN's fused attention on GPUs, with the mask
as a bias where no kernel without one can run; other platforms run XLA's
attention. cuDNN does not cap logits: ATTEN_LOGIT_CAP must be 0.
USE_FP8 multiplies in float8 (Hopper or newer); on other devices XLA rounds the
operands to float8 and multiplies in a wider type, which is slower.
"""

from __future__ import annotations

from pax import base_experiment, experiment_registry, tasks_lib
from pax.tasks.lm import (
  adam_params,
  llama,
  model_params,
  moe_language_models,
  nvidia_lm,
)
from pax.tasks.lm.params import lm_cloud
from praxis import base_layer, pax_fiddle
from praxis.layers import (
  activations,
  gpu_fast_attention,
  grouped_query_attention,
)
from praxis.layers.checkpoint_policy import AutodiffCheckpointType
from praxis.layers.transformer_models import stack_configs

Config = pax_fiddle.Config
TaskConfig = Config[tasks_lib.SingleTask]
WeightInit = base_layer.WeightInit


@experiment_registry.register
class NVIDIA1_3B(
  nvidia_lm.NvidiaLm,
  adam_params.TransformerLmSpmdAdam,
  lm_cloud.SyntheticDataset,
):
  """1.3B parameters on 16 GPUs."""

  MODEL_DIMS = 2048
  HIDDEN_DIMS = 8192
  NUM_HEADS: int | None = 32
  DIMS_PER_HEAD: int | None = 64
  NUM_LAYERS = 24

  PERCORE_BATCH_SIZE: float = 4
  ICI_MESH_SHAPE = [16, 1, 1]
  USE_REPEATED_LAYER = True

  def task(self) -> TaskConfig:
    task_p = super().task()
    task_p.summary_verbosity = 0
    return task_p


@experiment_registry.register
class NVIDIA5B(
  nvidia_lm.NvidiaLm,
  adam_params.TransformerLmSpmdPipelineAdam,
  lm_cloud.SyntheticDataset,
):
  """5B parameters in 4 stages on 16 GPUs."""

  MODEL_DIMS = 4096
  HIDDEN_DIMS = 16384
  NUM_HEADS: int | None = 32
  NUM_LAYERS = 24

  PERCORE_BATCH_SIZE: float = 1
  ICI_MESH_SHAPE = [4, 2, 1, 2]
  NUM_STAGES = 4
  MICROBATCH_SIZE: int | None = 2


@experiment_registry.register
class NVIDIA8_3B(NVIDIA1_3B):
  """8.3B parameters on 16 GPUs, 4 per replica."""

  MODEL_DIMS = 4096
  HIDDEN_DIMS = 4 * 4096
  NUM_HEADS = 64
  NUM_LAYERS = 40

  ICI_MESH_SHAPE = [4, 1, 4]


@experiment_registry.register
class NVIDIA10B(NVIDIA1_3B):
  """10B parameters on 16 GPUs, 8 per replica."""

  MODEL_DIMS = 5120
  HIDDEN_DIMS = 4 * 5120
  NUM_HEADS = 40
  DIMS_PER_HEAD = 128
  NUM_LAYERS = 32

  PERCORE_BATCH_SIZE = 0.25
  ICI_MESH_SHAPE = [2, 1, 8]


@experiment_registry.register
class NVIDIA40BProxy(NVIDIA5B):
  """The layers of a 40B model that fit on 16 GPUs: 10B in 2 stages."""

  MODEL_DIMS = 8192
  HIDDEN_DIMS = 4 * 8192
  NUM_HEADS = 64
  NUM_LAYERS = 12

  PERCORE_BATCH_SIZE = 16
  ICI_MESH_SHAPE = [2, 2, 1, 4]
  NUM_STAGES = 2
  MICROBATCH_SIZE = 4


@experiment_registry.register
class NVIDIA70BProxy(NVIDIA5B):
  """The layers of a 70B model that fit on 16 GPUs: 17B in 2 stages."""

  MODEL_DIMS = 8192
  HIDDEN_DIMS = 4 * 8192
  NUM_HEADS = 64
  NUM_LAYERS = 20

  PERCORE_BATCH_SIZE = 8
  ICI_MESH_SHAPE = [2, 2, 1, 4]
  NUM_STAGES = 2
  MICROBATCH_SIZE = 4


@experiment_registry.register
class NVIDIA116BProxy(NVIDIA5B):
  """The layers of a 116B model that fit on 16 GPUs: 30B in 4 stages."""

  MODEL_DIMS = 12288
  HIDDEN_DIMS = 4 * 12288
  NUM_HEADS = 96
  NUM_LAYERS = 16

  PERCORE_BATCH_SIZE: float = 6
  ICI_MESH_SHAPE = [4, 1, 1, 4]


@experiment_registry.register
class NVIDIA175BProxy(NVIDIA5B):
  """A quarter of the layers of a 175B model, in 4 stages on 16 GPUs."""

  MODEL_DIMS = 12288
  HIDDEN_DIMS = 4 * 12288
  NUM_HEADS = 96

  PERCORE_BATCH_SIZE: float = 6
  ICI_MESH_SHAPE = [4, 1, 1, 4]
  MICROBATCH_SIZE = 1


@experiment_registry.register
class NVIDIA175B(NVIDIA175BProxy):
  """175B parameters in 6 stages, 16 GPUs (A100, 40 GB) each."""

  NUM_LAYERS = 96

  PERCORE_BATCH_SIZE = 0.0625
  ICI_MESH_SHAPE = [1, 1, 1, 16]
  DCN_MESH_SHAPE = [6, 1, 1, 1]
  NUM_STAGES = 6

  USE_ADAFACTOR = True


@experiment_registry.register
class TestSmallConfig(NVIDIA5B):
  """3.4B parameters in 2 stages on 16 GPUs."""

  NUM_LAYERS = 16
  PERCORE_BATCH_SIZE = 2
  ICI_MESH_SHAPE = [2, 2, 1, 4]
  NUM_STAGES = 2


@experiment_registry.register
class Llama33BProxy(NVIDIA1_3B):
  """The sizes of LLaMA 33B without gates or rotary embeddings: 25B."""

  MODEL_DIMS = 6656
  HIDDEN_DIMS = 17920
  NUM_HEADS = 52
  DIMS_PER_HEAD = 128
  NUM_LAYERS = 60
  VOCAB_SIZE = 32000

  PERCORE_BATCH_SIZE = 1
  ICI_MESH_SHAPE = [1, 16, 1]

  USE_ADAFACTOR = True


@experiment_registry.register
class NVIDIA175B_FSDP(NVIDIA1_3B):
  """175B parameters, fully sharded over 8 x 16 GPUs."""

  MODEL_DIMS = 12288
  HIDDEN_DIMS = 4 * 12288
  NUM_HEADS = 96
  DIMS_PER_HEAD = 128
  NUM_LAYERS = 96

  PERCORE_BATCH_SIZE = 1
  ICI_MESH_SHAPE = [1, 16, 1]
  DCN_MESH_SHAPE = [1, 8, 1]

  USE_ADAFACTOR = True


@experiment_registry.register
class Llama2_7B(NVIDIA1_3B):
  """LLaMA 2 7B as published (6,738,415,616 parameters), on 16 GPUs.

  Upstream's has 51200 tokens, biases, capped logits and tied embeddings, and
  does not shard the key and value projections.

  References: https://arxiv.org/abs/2307.09288
  """

  MODEL_DIMS = 4096
  HIDDEN_DIMS = 11008
  NUM_KV_HEADS = 32
  DIMS_PER_HEAD = 128
  NUM_LAYERS = 32
  VOCAB_SIZE = 32000
  SEPARATE_EMBEDDING = True
  TRAINABLE_POSITION_EMB = False
  ACTIVATION_CLS = activations.Swish
  USE_GATED_ACTIVATION = True
  ATTEN_LOGIT_CAP = 0.0
  SOFTMAX_CAP_LOGITS = None
  RMS_NORM_EPSILON = 1e-5

  PERCORE_BATCH_SIZE = 1
  MAX_SEQ_LEN = 4096
  ICI_MESH_SHAPE = [1, 16, 1]

  MAX_STEPS = 100

  def task(self) -> TaskConfig:
    task_p = super().task()
    task_p.train.set(num_train_steps=self.MAX_STEPS, eval_skip_train=True)
    lm_p = task_p.model.lm_tpl
    llama.configure_llama(lm_p, self.RMS_NORM_EPSILON)
    for block_p in stack_configs.stacked_transformers(
      lm_p.stacked_transformer_tpl
    ):
      block_p.transformer_layer_params_tpl.tr_atten_tpl = self._attention()
    return task_p

  def _attention(self) -> Config[base_layer.BaseLayer]:
    atten_p = Config(grouped_query_attention.GroupedQueryAttention)
    if self.USE_CUDNN_FLASH_ATTENTION:
      atten_p = Config(
        gpu_fast_attention.GpuCudnnFusedGroupedQueryAttention, is_causal=True
      )
    atten_p.set(
      num_kv_heads=self.NUM_KV_HEADS,
      use_bias=False,
      rope_min_max_timescales=(1, 10000),
    )
    batch, weights = ('replica', 'data'), ['data', 'mdl', None]
    atten_p.weight_split_dims_mapping.set(dnh=weights, dkh=weights)
    atten_p.activation_split_dims_mapping.set(
      btd=[batch, None, None],
      btnh=[batch, None, 'mdl', None],
      bskh=[batch, None, 'mdl', None],
    )
    return atten_p


@experiment_registry.register
class Llama2_13B(Llama2_7B):
  """LLaMA 2 13B as published (13,015,864,320 parameters), on 16 GPUs."""

  MODEL_DIMS = 5120
  HIDDEN_DIMS = 13824
  NUM_HEADS = 40
  NUM_KV_HEADS = NUM_HEADS
  NUM_LAYERS = 40


@experiment_registry.register
class Llama2_70B(Llama2_7B):
  """LLaMA 2 70B as published (68,976,648,192 parameters), on 64 GPUs."""

  MODEL_DIMS = 8192
  HIDDEN_DIMS = 28672
  NUM_HEADS = 64
  NUM_KV_HEADS = 8
  NUM_LAYERS = 80

  DCN_MESH_SHAPE = [1, 4, 1]


@experiment_registry.register
class MoELarge(NVIDIA1_3B):
  """27B parameters, 16 experts in every layer, on 32 GPUs."""

  MODEL_DIMS = 4096
  HIDDEN_DIMS = 16384
  DIMS_PER_HEAD = 128
  NUM_LAYERS = 12
  NUM_EXPERTS = 16
  NUM_GROUPS = 16

  ICI_MESH_SHAPE = [1, 16, 1]
  DCN_MESH_SHAPE = [1, 2, 1]

  def task(self) -> TaskConfig:
    task_p = super().task()
    for block_p in stack_configs.stacked_transformers(
      task_p.model.lm_tpl.stacked_transformer_tpl
    ):
      block_p.set(
        moe_layers=list(range(block_p.num_layers)),
        num_groups=self.NUM_GROUPS,
        num_experts=self.NUM_EXPERTS,
      )
      model_params.maybe_setup_moe_params(block_p)
    return task_p


@experiment_registry.register
class GLaM64B64EProxy(NVIDIA1_3B):
  """8 layers of GLaM 64B/64E: 143B parameters on 128 GPUs (A100, 40 GB).

  Upstream declares it without registering it.
  """

  NUM_GPUS = 128
  MODEL_DIMS = 8192
  HIDDEN_DIMS = 32768
  NUM_HEADS = 64
  DIMS_PER_HEAD = 128
  NUM_LAYERS = 8
  NUM_EXPERTS = 64
  NUM_GROUPS = NUM_GPUS

  ICI_MESH_SHAPE = [1, NUM_GPUS, 1]
  DCN_MESH_SHAPE = None

  def task(self) -> TaskConfig:
    task_p = super().task()
    task_p.model.lm_tpl = moe_language_models.glam_lm(self)
    self._set_sharding(task_p)
    return task_p


@experiment_registry.register
class GLaM64B64EProxy_EP(GLaM64B64EProxy):
  """GLaM64B64EProxy with 8 experts, sharded over 8 GPUs: 23B parameters.

  Upstream's raises an error: its mesh has 4 axes and 3 axis names.
  """

  NUM_EXPERTS = 8
  USE_EXPERT_PARALLEL = True
  ICI_MESH_SHAPE = [1, 16, 8, 1]


class _Grok1(base_experiment.BaseExperiment):
  """Sizes of Grok-1, sharded by expert: 8 experts in each of 64 layers."""

  MODEL_DIMS = 6144
  HIDDEN_DIMS = 32768
  NUM_HEADS: int | None = 48
  NUM_KV_HEADS = 8
  DIMS_PER_HEAD: int | None = 128
  NUM_LAYERS = 64
  VOCAB_SIZE = 131072
  # Rotary position embedding; if False, a relative position bias.
  USE_ROPE = True
  COMBINE_QKV = False
  NUM_EXPERTS = 8
  USE_EXPERT_PARALLEL = True

  PERCORE_BATCH_SIZE: float = 1
  MAX_SEQ_LEN = 8192
  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_QKV_OUT_PROJ

  MAX_STEPS = 10


@experiment_registry.register
class Grok(_Grok1, NVIDIA1_3B):
  """Grok-1 on 256 GPUs: mesh (replica, data, data_expert, mdl)."""

  NUM_GPUS = 256
  NUM_GROUPS = NUM_GPUS
  ICI_MESH_SHAPE = [1, 1, 8, 1]
  DCN_MESH_SHAPE = [1, NUM_GPUS // 8, 1, 1]

  def task(self) -> TaskConfig:
    task_p = super().task()
    task_p.train.num_train_steps = self.MAX_STEPS
    task_p.model.lm_tpl = moe_language_models.grok_lm(self)
    self._set_sharding(task_p)
    return task_p


@experiment_registry.register
class Grok_Proxy(Grok):
  """A quarter of the layers of Grok-1, on 64 GPUs."""

  NUM_GPUS = 64
  NUM_LAYERS = 16
  NUM_GROUPS = NUM_GPUS
  DCN_MESH_SHAPE = [1, NUM_GPUS // 8, 1, 1]


@experiment_registry.register
class Grok_Proxy_PP(_Grok1, NVIDIA5B):
  """A quarter of the layers of Grok-1 in 8 stages, 64 GPUs each.

  NUM_MICROBATCHES sets the microbatches. Upstream also sets a MICROBATCH_SIZE
  that contradicts it and has no effect.
  """

  NUM_GPUS = 64
  NUM_LAYERS = 16
  NUM_GROUPS = 8

  ICI_MESH_SHAPE = [1, 1, 1, 8, 1]
  NUM_STAGES = 8
  DCN_MESH_SHAPE = [NUM_STAGES, 1, NUM_GPUS // 8, 1, 1]
  NUM_MICROBATCHES = 32
  MICROBATCH_SIZE = None

  def task(self) -> TaskConfig:
    task_p = super().task()
    task_p.train.set(
      num_train_steps=self.MAX_STEPS, always_use_train_for_model_init=False
    )
    task_p.model.report_strict_acc = True
    task_p.model.lm_tpl = moe_language_models.grok_lm(
      self,
      num_pipeline_stages=self.NUM_STAGES,
      num_pipeline_microbatches=self.NUM_MICROBATCHES,
    )
    self._set_sharding(task_p)
    return task_p


@experiment_registry.register
class Grok_PP(Grok_Proxy_PP):
  """Grok-1 in 8 stages, 64 GPUs each."""

  NUM_LAYERS = 64


@experiment_registry.register
class NVIDIA_CIRCULAR_REPEAT(
  adam_params.TransformerLmSpmdPipelineAdam, lm_cloud.SyntheticDataset
):
  """6.6B parameters in 8 stages, with 4 groups of layers per stage.

  Unlike upstream, MAX_STEPS, INIT_STD, SOFTMAX_INIT_STD and the cosine schedule
  have an effect.
  """

  MODEL_DIMS = 4096
  HIDDEN_DIMS = 16384
  NUM_HEADS = 32
  INIT_STD = 0.01
  SOFTMAX_INIT_STD = 0.01

  PERCORE_BATCH_SIZE = 1
  ICI_MESH_SHAPE = [8, 1, 1, 1]
  NUM_STAGES = 8
  CIRCULAR_REPEAT = 4
  NUM_MICROBATCHES = 8
  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_DOT_ONLY

  LR_SCHEDULE = 'linear_rampup_cosine_decay'
  LEARNING_RATE = 1.6e-4
  LR_COS_WARMUP = 115
  LR_COS_DECAY_START = LR_COS_WARMUP + 1
  LR_COS_DECAY_END = 62500
  MAX_STEPS = 2000
  SUMMARY_INTERVAL_STEPS = 10
  CHECKPOINT_EVERY_N_STEPS = 250

  def task(self) -> TaskConfig:
    task_p = super().task()
    task_p.summary_verbosity = 0
    task_p.train.num_train_steps = self.MAX_STEPS
    task_p.model.params_init = WeightInit.Gaussian(self.INIT_STD)
    task_p.model.lm_tpl.softmax_tpl.params_init = WeightInit.Gaussian(
      self.SOFTMAX_INIT_STD
    )
    return task_p
