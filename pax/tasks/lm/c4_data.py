# SPDX-License-Identifier: Apache-2.0
"""C4 as MLPerf trains GPT-3 on it, or made-up tokens in its place."""

from __future__ import annotations

import math

import jax

from pax import base_experiment
from pax.inputs import batch_specs, c4_tasks, lm_features, seqio_input
from pax.tasks.lm import gpt3, input_generator
from praxis import base_input, pax_fiddle

Config = pax_fiddle.Config
InputConfig = Config[base_input.BaseInput]


class C4UnsupervisedDataset(base_experiment.BaseExperiment):
  """The English part of C4, packed, and its validation set, tokenised.

  SeqIO reads it; where that is not at hand, --set SYNTHETIC_DATA=True trains
  on one made-up batch, which takes as long.

  References: C4, https://arxiv.org/abs/1910.10683
  """

  # Whether one made-up batch takes the place of the data.
  SYNTHETIC_DATA = False
  # Rows per device; a fraction gives several devices one row. Those of
  # evaluation are as many unless they are set.
  PERCORE_BATCH_SIZE = 1
  PERCORE_EVAL_BATCH_SIZE = None
  MAX_SEQ_LEN = 1024
  # Chooses the order of training data, and how many batches of it are left out.
  TRAINING_SEED = 9876
  TRAINING_NUM_BATCHES_TO_SKIP = None
  # SeqIO's names of the data.
  TRAIN_MIXTURE = c4_tasks.TRAIN_TASK
  EVAL_MIXTURE = c4_tasks.EVAL_TASK

  def datasets(self) -> list[InputConfig]:
    return [self._dataset(is_training) for is_training in (True, False)]

  def get_input_specs_provider_params(
    self,
  ) -> Config[base_input.BaseInputSpecsProvider]:
    return Config(
      batch_specs.RowSpecsProvider,
      batch_size=self.training_dataset().batch_size,
      seq_len=self.MAX_SEQ_LEN,
      ints=('ids', 'labels', 'segment_ids', 'segment_pos'),
      floats=('paddings', 'weights'),
      weights=() if self.SYNTHETIC_DATA else ('eval_sample_weights',),
    )

  def _dataset(self, is_training: bool) -> InputConfig:
    percore = self.PERCORE_BATCH_SIZE
    if not is_training and self.PERCORE_EVAL_BATCH_SIZE is not None:
      percore = self.PERCORE_EVAL_BATCH_SIZE
    batch_size, hosts = _split_over_hosts(percore)
    cls, fields = (
      (input_generator.SyntheticLmData, {'seq_len': self.MAX_SEQ_LEN})
      if self.SYNTHETIC_DATA
      else (seqio_input.SeqIOInput, self._seqio_fields(is_training))
    )
    return Config(
      cls,
      name='C4Train' if is_training else 'C4Validation',
      batch_size=batch_size,
      num_infeed_hosts=hosts,
      is_training=is_training,
      **fields,
    )

  def _seqio_fields(self, is_training: bool) -> dict[str, object]:
    train, test = self.TRAIN_MIXTURE, self.EVAL_MIXTURE
    split = 'train2' if is_training else 'validation_tokenized_5662seqs'
    return {
      'mixture_name': train if is_training else test,
      'split_name': split,
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
  """Returns (rows per host, hosts that read) for so many rows per device.

  Raises:
    ValueError: the rows of a step do not divide by those of a host.
  """
  devices, processes = jax.local_device_count(), jax.process_count()
  rows = int(percore * devices * processes + 1e-6)
  if percore >= 1:
    per_host = math.ceil(percore) * devices
  else:
    per_host = devices if processes > 1 else rows
  if not rows or rows % per_host:
    raise ValueError(
      f'PERCORE_BATCH_SIZE={percore} on {processes} hosts of {devices} devices '
      f'makes {rows} rows a step, want a multiple of {per_host or 1}; change it'
    )
  return per_host, rows // per_host
