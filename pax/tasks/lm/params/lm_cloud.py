# SPDX-License-Identifier: Apache-2.0
"""Language models on synthetic data, from one device to several slices."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from pax import base_experiment, experiment_registry, tasks_lib
from pax.tasks.lm import input_generator, lm_data, model_params
from praxis import base_input, pax_fiddle
from praxis.layers import activations
from praxis.layers.checkpoint_policy import AutodiffCheckpointType

Config = pax_fiddle.Config
TaskConfig = Config[tasks_lib.SingleTask]


class SyntheticDataset(lm_data.LanguageModelData):
  """One constant synthetic batch, to measure speed."""

  # Rows per device; a fraction shares a row among devices.
  PERCORE_BATCH_SIZE: float = 16
  MAX_SEQ_LEN = 1024

  def datasets(self) -> list[Config[base_input.BaseInput]]:
    return self.with_data([self._dataset_common(t) for t in (True, False)])

  def _dataset_common(self, is_training: bool) -> Config[base_input.BaseInput]:
    rows_per_host = self.PERCORE_BATCH_SIZE * jax.local_device_count()
    num_hosts = jax.process_count()
    batch_size = round(rows_per_host)
    if self.PERCORE_BATCH_SIZE < 1:
      batch_size = math.ceil(rows_per_host)
      num_hosts = int(rows_per_host * num_hosts) // batch_size
    return Config(
      input_generator.SyntheticLmData,
      batch_size=batch_size,
      num_infeed_hosts=num_hosts,
      seq_len=self.MAX_SEQ_LEN,
      is_training=is_training,
    )


class LimitSteps(base_experiment.BaseExperiment):
  """Mixin that sets the number of training steps."""

  NUM_TRAIN_STEPS = 300

  def task(self) -> TaskConfig:
    task_p = super().task()
    task_p.train.num_train_steps = self.NUM_TRAIN_STEPS
    return task_p


@experiment_registry.register
class LargeMlp(model_params.ClassificationModelAdam, SyntheticDataset):
  """A perceptron of 8 layers, 4096 x 7168, replicated over 8 devices."""

  MESH_SHAPE = [8, 1, 1]
  SOFTMAX_WEIGHT_SHARDING = [-1, -1]
  MLP_WEIGHT_SHARDING = [-1, -1]


@experiment_registry.register
class SmallMlp(LargeMlp):
  """A perceptron of 8 layers, 1024 x 1024, replicated over 8 devices."""

  HIDDEN_DIM = 1024
  INPUT_DIM = 1024
  OUTPUT_DIM = 1024


@experiment_registry.register
class LmCloudTransformerAdam(
  model_params.TransformerLmPmapAdam, SyntheticDataset
):
  """32 layers of dimension 1024 (0.4B), one replica per device."""

  MODEL_DIMS = 1024

  def task(self) -> TaskConfig:
    task_p = super().task()
    # Object stores do not allow `#` in names.
    task_p.train.learner.repeat_prefix_sep = '_'
    return task_p


@experiment_registry.register
class LmCloudTransformerAdamTest(LmCloudTransformerAdam):
  """2 layers of dimension 1024, one replica per device."""

  NUM_LAYERS = 2


@experiment_registry.register
class LmCloudTransformerAdamLimitSteps(LimitSteps, LmCloudTransformerAdam):
  """10 layers of dimension 1024 for 2000 steps, one replica per device."""

  NUM_LAYERS = 10
  NUM_TRAIN_STEPS = 2000


class LmCloudSpmd(model_params.TransformerLmSpmdAdafactor, SyntheticDataset):
  """Transformer layers in a scan, over a mesh, trained by Adam."""

  MODEL_DIMS = 2048
  ACTIVATION_CLS = activations.GELU
  USE_REPEATED_LAYER = True

  def task(self) -> TaskConfig:
    task_p = super().task()
    model_params.set_default_adam(task_p, self.LEARNING_RATE, self.WEIGHT_DECAY)
    # Object stores do not allow `#` in names.
    task_p.train.learner.repeat_prefix_sep = '_'
    return task_p


@experiment_registry.register
class LmCloudSpmdTest(LmCloudSpmd):
  """2 layers of dimension 64 (2M) on one device."""

  MODEL_DIMS = 64
  HIDDEN_DIMS = MODEL_DIMS * 4
  DIMS_PER_HEAD = 8
  NUM_LAYERS = 2

  PERCORE_BATCH_SIZE = 4
  ICI_MESH_SHAPE = [1, 1, 1]


@experiment_registry.register
class LmCloudSpmd2B(LmCloudSpmd):
  """2B parameters on 4 devices."""

  MODEL_DIMS = 3072
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_LAYERS = 18

  PERCORE_BATCH_SIZE = 8
  ICI_MESH_SHAPE = [1, 4, 1]


@experiment_registry.register
class LmCloudSpmd2BLimitSteps(LimitSteps, LmCloudSpmd2B):
  """2B parameters on 4 devices for 300 steps."""


@experiment_registry.register
class LmCloudSpmd32B(LmCloudSpmd):
  """32B parameters on 64 devices."""

  MODEL_DIMS = 8192
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_LAYERS = 40

  PERCORE_BATCH_SIZE = 8
  ICI_MESH_SHAPE = [1, 16, 4]
  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_CONTEXT_AND_OUT_PROJ


@experiment_registry.register
class LmCloudSpmd64B(LmCloudSpmd):
  """64B parameters on 128 devices."""

  MODEL_DIMS = 10240
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_LAYERS = 51

  PERCORE_BATCH_SIZE = 4
  ICI_MESH_SHAPE = [1, 16, 8]
  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_CONTEXT_AND_OUT_PROJ


@experiment_registry.register
class LmCloudSpmd128B(LmCloudSpmd):
  """128B parameters on 256 devices."""

  MODEL_DIMS = 12288
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_LAYERS = 71

  PERCORE_BATCH_SIZE = 4
  ICI_MESH_SHAPE = [1, 64, 4]


@experiment_registry.register
class LmCloudSpmd256B(LmCloudSpmd):
  """256B parameters on 512 devices."""

  MODEL_DIMS = 16384
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_LAYERS = 80

  PERCORE_BATCH_SIZE = 4
  ICI_MESH_SHAPE = [1, 64, 8]


@experiment_registry.register
class LmCloudSpmd512B(LmCloudSpmd):
  """512B parameters on 1024 devices."""

  MODEL_DIMS = 20480
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_LAYERS = 102

  PERCORE_BATCH_SIZE = 4
  ICI_MESH_SHAPE = [1, 64, 16]
  # Decomposed matmuls never have whole gathered activations: 4 rows fit.
  COMPILER_OPTIONS = {
    'tpu': {'xla_jf_spmd_threshold_for_windowed_einsum_mib': 32}
  }


@experiment_registry.register
class LmCloudSpmd1024B(LmCloudSpmd):
  """1024B parameters on 2048 devices."""

  MODEL_DIMS = 24576
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_LAYERS = 142

  PERCORE_BATCH_SIZE = 2
  ICI_MESH_SHAPE = [1, 256, 8]


class LmCloudSpmdPipeline(
  model_params.TransformerLmSpmdPipelineAdafactor, SyntheticDataset
):
  """Transformer layers in a pipeline, over a mesh, trained by Adam."""

  MODEL_DIMS = 2048
  ACTIVATION_CLS = activations.GELU

  def task(self) -> TaskConfig:
    task_p = super().task()
    model_params.set_default_adam(task_p, self.LEARNING_RATE, self.WEIGHT_DECAY)
    return task_p


@experiment_registry.register
class LmCloudSpmdPipeline9B(LmCloudSpmdPipeline):
  """9B parameters in 16 stages on 64 devices."""

  MODEL_DIMS = 4096
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_LAYERS = 48

  PERCORE_BATCH_SIZE = 8
  NUM_STAGES = 16
  MICROBATCH_SIZE = 4
  ICI_MESH_SHAPE = [16, 4, 1, 1]
  FPROP_DTYPE = jnp.float32


@experiment_registry.register
class LmCloudSpmdPipeline175B(LmCloudSpmdPipeline):
  """175B parameters in 8 stages, a slice of 16 devices each."""

  MODEL_DIMS = 12288
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 96
  NUM_LAYERS = 96

  PERCORE_BATCH_SIZE = 0.75
  MAX_SEQ_LEN = 2048
  ICI_MESH_SHAPE = [1, 1, 1, 16]
  DCN_MESH_SHAPE = [8, 1, 1, 1]
  NUM_STAGES = 8
  MICROBATCH_SIZE = 2


@experiment_registry.register
class LmCloudSpmdMultislice2B(LmCloudSpmd):
  """2B parameters on two slices of 4 devices."""

  MODEL_DIMS = 3072
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_LAYERS = 18

  ICI_MESH_SHAPE = [1, 4, 1]
  DCN_MESH_SHAPE = [2, 1, 1]


@experiment_registry.register
class LmCloudSpmdPipelineMultislice2B(LmCloudSpmdPipeline):
  """2B parameters in two stages, a slice of 4 devices each."""

  MODEL_DIMS = 3072
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_LAYERS = 18

  NUM_STAGES = 2
  MICROBATCH_SIZE = 4
  STREAM_IO = True
  ICI_MESH_SHAPE = [1, 4, 1, 1]
  DCN_MESH_SHAPE = [2, 1, 1, 1]
  EMB_W_DATA_DIMS = ('replica', 'data')


@experiment_registry.register
class LmCloudSpmdPipelineMultislice2BCircular(LmCloudSpmdPipelineMultislice2B):
  """2B parameters, three groups of layers per stage (circular schedule)."""

  CIRCULAR_REPEAT = 3
  MICROBATCH_SIZE = 8
