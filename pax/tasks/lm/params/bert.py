# SPDX-License-Identifier: Apache-2.0
"""Masked language models on the data of MLPerf's BERT benchmark."""

from __future__ import annotations

import jax

from pax import base_experiment, experiment_registry, tasks_lib
from pax.inputs import batch_specs
from pax.tasks.lm import input_generator, model_params
from praxis import base_input, pax_fiddle
from praxis.layers.checkpoint_policy import AutodiffCheckpointType

Config = pax_fiddle.Config
TaskConfig = Config[tasks_lib.SingleTask]
InputConfig = Config[base_input.BaseInput]


class BertDataset(base_experiment.BaseExperiment):
  """TFRecord files of MLPerf's BERT benchmark; flags set their paths.

  --set TRAIN_FILES='/data/train/part-*' --set EVAL_FILES=/data/eval_10k
  """

  # Files, globs, folders or `name@shards`, separated by commas.
  TRAIN_FILES: str | None = None
  EVAL_FILES: str | None = None
  # Positions per row and per record.
  MAX_SEQ_LEN = 512
  # Rows per device.
  PERCORE_BATCH_SIZE: float = 8
  # Size of the shuffle buffer, in documents.
  RANDOM_BUFFER_SIZE = 100_000
  # Whether each epoch masks new random tokens.
  MLPERF_REMASK = True
  # Number of token ids of the model; set by the experiment.
  VOCAB_SIZE: int

  def datasets(self) -> list[InputConfig]:
    return [self._datasetTrain(), self._datasetTest()]

  def get_input_specs_provider_params(
    self,
  ) -> Config[base_input.BaseInputSpecsProvider]:
    train_p = self.training_dataset()
    return Config(
      batch_specs.RowSpecsProvider,
      batch_size=train_p.batch_size,
      seq_len=self.MAX_SEQ_LEN,
      ints=('labels', 'masked_ids', 'segment_ids', 'segment_pos'),
      floats=('masked_pos', 'paddings'),
    )

  def _datasetTrain(self) -> InputConfig:
    train_p = Config(
      input_generator.TFRecordBertInput,
      name='train',
      is_training=True,
      input_file=self.TRAIN_FILES,
      num_samples=156_725_653,
      max_sequence_length=self.MAX_SEQ_LEN,
      batch_size=self.PERCORE_BATCH_SIZE * jax.local_device_count(),
      file_buffer_size=self.RANDOM_BUFFER_SIZE,
      enable_packing=True,
      remask=self.MLPERF_REMASK,
      vocab_size=self.VOCAB_SIZE,
    )
    train_p.mlm_augmenter.set(mask_token_id=103, vocab_size=30522)
    return train_p

  def _datasetTest(self) -> InputConfig:
    return Config(
      input_generator.TFRecordBertInput,
      name='test',
      reset_for_eval=True,
      input_file=self.EVAL_FILES,
      num_samples=10_000,
      max_sequence_length=self.MAX_SEQ_LEN,
      batch_size=self.PERCORE_BATCH_SIZE * jax.local_device_count(),
      vocab_size=self.VOCAB_SIZE,
    )


@experiment_registry.register
class BertAdamL4H128(model_params.TransformerBertPmapAdam, BertDataset):
  """4 layers of dimension 128 (5M), one replica per device."""

  MODEL_DIMS = 128


class BertSpmd(model_params.TransformerBertSpmdAdafactor, BertDataset):
  """32 layers of dimension 1024 (0.4B); subclasses set the mesh."""

  MODEL_DIMS = 1024


@experiment_registry.register
class BertSpmdL4H128(BertSpmd):
  """4 layers of dimension 128 (5M) on 8 devices."""

  MODEL_DIMS = 128
  HIDDEN_DIMS = MODEL_DIMS * 4
  DIMS_PER_HEAD = 16
  NUM_HEADS = MODEL_DIMS // DIMS_PER_HEAD
  NUM_LAYERS = 4

  PERCORE_BATCH_SIZE = 4
  MESH_SHAPE = [1, 4, 2]

  LEARNING_RATE = 2.5e-4
  CHECKPOINT_EVERY_N_STEPS = 5000
  ENABLE_BFLOAT16 = True


@experiment_registry.register
class BertSpmdL33H12kBiggerBatch(BertSpmd):
  """100B parameters on 512 devices, batch size 2048."""

  MODEL_DIMS = 12288
  HIDDEN_DIMS = MODEL_DIMS * 8
  DIMS_PER_HEAD = 96
  NUM_HEADS = MODEL_DIMS // DIMS_PER_HEAD
  NUM_LAYERS = 33

  PERCORE_BATCH_SIZE = 4
  MESH_SHAPE = [1, 64, 8]

  LEARNING_RATE = 2.5e-4
  WEIGHT_DECAY = 1e-2
  CHECKPOINT_EVERY_N_STEPS = 1000
  ENABLE_BFLOAT16 = True

  def task(self) -> TaskConfig:
    task_p = super().task()
    task_p.model.label_smoothing_prob = 0.1
    return task_p


@experiment_registry.register
class BertSpmdL33H12kBiggerBatch8x8x16(BertSpmdL33H12kBiggerBatch):
  """100B parameters on 1024 devices, batch size 4096."""

  MESH_SHAPE = [1, 64, 16]
  CHECKPOINT_EVERY_N_STEPS = 500
  RANDOM_BUFFER_SIZE = 50_000


@experiment_registry.register
class BertSpmdL66H12kBiggerBatch8x8x16(BertSpmdL33H12kBiggerBatch):
  """200B parameters on 1024 devices, batch size 4096."""

  NUM_LAYERS = 66

  MESH_SHAPE = [1, 64, 16]
  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_DOT_FOR_MLPERF_200B

  CHECKPOINT_EVERY_N_STEPS = 200
  CHECKPOINT_SAVE_MAX_TO_KEEP = 20
  RANDOM_BUFFER_SIZE = 50_000


@experiment_registry.register
class BertSpmdL66H12kBiggerBatch8x8x8(BertSpmdL66H12kBiggerBatch8x8x16):
  """200B parameters on 512 devices, batch size 512."""

  PERCORE_BATCH_SIZE = 1
  MESH_SHAPE = [1, 64, 8]
