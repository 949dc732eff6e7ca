# SPDX-License-Identifier: Apache-2.0
"""C4 as in MLPerf's GPT-3 benchmark, or synthetic data."""

from __future__ import annotations

import math

import jax

from pax.inputs import batch_specs
from pax.inputs.seqio import c4_tasks, lm_features, seqio_input
from pax.tasks.lm import gpt3, input_generator, lm_data
from praxis import base_input, pax_fiddle

Config = pax_fiddle.Config
InputConfig = Config[base_input.BaseInput]


class C4UnsupervisedDataset(lm_data.LanguageModelData):
  """The English C4, packed for training, and its tokenized validation set.

  SeqIO reads the data and the vocabulary from the public bucket of MLPerf;
  --tfds_data_dir and --set TOKENIZER=/data/c4.model name copies. Without SeqIO,
  --set SYNTHETIC_DATA=True trains on one constant batch at the same speed.

  References: C4, https://arxiv.org/abs/1910.10683
  """

  # Names of the SeqIO tasks.
  TRAIN_MIXTURE = c4_tasks.TRAIN_TASK
  EVAL_MIXTURE = c4_tasks.EVAL_TASK
  # Whether to train on one constant synthetic batch instead of C4.
  SYNTHETIC_DATA = False

  MAX_SEQ_LEN = 1024
  # Rows per device; a fraction shares a row among devices.
  PERCORE_BATCH_SIZE: float = 1
  # The same in evaluation; None is PERCORE_BATCH_SIZE.
  PERCORE_EVAL_BATCH_SIZE: float | None = None
  # Number of training batches that are skipped at the start.
  TRAINING_NUM_BATCHES_TO_SKIP: int | None = None
  # Seed of the order of the training data.
  TRAINING_SEED = 9876

  def datasets(self) -> list[InputConfig]:
    return self.with_data([self._dataset_common(t) for t in (True, False)])

  def get_input_specs_provider_params(
    self,
  ) -> Config[base_input.BaseInputSpecsProvider]:
    input_p = self.training_dataset()
    return Config(
      batch_specs.RowSpecsProvider,
      batch_size=input_p.batch_size,
      has_example_ids=input_p.cls is seqio_input.SeqIOInput,
      seq_len=self.MAX_SEQ_LEN,
      ints=('ids', 'labels', 'segment_ids', 'segment_pos'),
      floats=('paddings', 'weights'),
      weights=('eval_sample_weights',),
    )

  def _dataset_common(self, is_training: bool) -> InputConfig:
    percore = self.PERCORE_BATCH_SIZE
    if not is_training and self.PERCORE_EVAL_BATCH_SIZE is not None:
      percore = self.PERCORE_EVAL_BATCH_SIZE
    batch_size, num_hosts = _split_over_hosts(percore)
    cls, fields = (
      (input_generator.SyntheticLmData, {'seq_len': self.MAX_SEQ_LEN})
      if self.SYNTHETIC_DATA
      else (seqio_input.SeqIOInput, self._seqio_fields(is_training))
    )
    return Config(
      cls,
      name='C4Train' if is_training else 'C4Validation',
      batch_size=batch_size,
      num_infeed_hosts=num_hosts,
      is_training=is_training,
      **fields,
    )

  def _seqio_fields(self, is_training: bool) -> dict[str, object]:
    # The validation set is tokens.
    task = {'mixture_name': self.EVAL_MIXTURE}
    if is_training:
      task = self.seqio_task(self.TRAIN_MIXTURE)
    return {
      **task,
      'split_name': (
        'train2' if is_training else 'validation_tokenized_5662seqs'
      ),
      'task_feature_lengths': {'targets': self.MAX_SEQ_LEN},
      'repeat': is_training,
      'feature_converter': Config(
        lm_features.LanguageModelFeatures,
        pack=is_training,
        bos_id=0,
        reverse_bos_padding=True,
        eos_id=gpt3.GPT_EOS_ID,
      ),
      'input_random_seed': self.TRAINING_SEED if is_training else 4321,
      'drop_remainder': is_training,
      'num_batches_to_skip': (
        self.TRAINING_NUM_BATCHES_TO_SKIP if is_training else None
      ),
      'reset_for_eval': not is_training,
      'annotate_padding_fields': True,
    }


def _split_over_hosts(percore: float) -> tuple[int, int]:
  """Returns (rows per host, number of hosts that read data).

  Args:
    percore: Rows per device.

  Raises:
    ValueError: The global batch size is not a multiple of the rows per host.
  """
  num_devices, num_hosts = jax.local_device_count(), jax.process_count()
  batch_size = int(percore * num_devices * num_hosts + 1e-6)
  if percore >= 1:
    per_host = math.ceil(percore) * num_devices
  else:
    per_host = num_devices if num_hosts > 1 else batch_size
  if not batch_size or batch_size % per_host:
    raise ValueError(
      f'PERCORE_BATCH_SIZE={percore} on {num_hosts} hosts with {num_devices} '
      f'devices must give a global batch size divisible by {per_host or 1}, '
      f'got {batch_size}; change PERCORE_BATCH_SIZE'
    )
  return per_host, batch_size // per_host
