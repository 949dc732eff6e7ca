# SPDX-License-Identifier: Apache-2.0
"""Data of the experiments on GPUs: the Pile, LAMBADA and BoolQ.

SeqIO reads them when a job asks for a batch, from the paths in environment
variables (`pax.inputs.pile_lambada_boolq_tasks`). Declaring, printing or
compiling an experiment needs neither SeqIO nor data.
"""

from __future__ import annotations

import math

import jax

from pax import base_experiment
from pax.inputs import (
  batch_specs,
  lm_features,
  pile_lambada_boolq_tasks,
  seqio_input,
)
from pax.tasks.lm import input_generator
from praxis import base_input, pax_fiddle

Config = pax_fiddle.Config
InputConfig = Config[base_input.BaseInput]

concatenate_passage_and_question = (
  pile_lambada_boolq_tasks.concatenate_passage_and_question
)

# How long the answer of an example is at most; the rest of a row is before it.
_TARGETS = 64
_EVAL_SEED = 4321


class SeqIODataset(base_experiment.BaseExperiment):
  """One task of SeqIO, its rows as many on each host."""

  # Rows per device; a fraction gives several devices one row.
  PERCORE_BATCH_SIZE = 1
  MAX_SEQ_LEN = 2048
  # Chooses the order of training data; None takes another each time.
  TRAIN_INPUT_RANDOM_SEED = None

  def get_input_specs_provider_params(
    self,
  ) -> Config[base_input.BaseInputSpecsProvider]:
    first = self.datasets()[0]
    if first.cls is not seqio_input.SeqIOInput:
      return Config(base_input.DatasetInputSpecsProvider, input_p=first)
    has_inputs = 'inputs' in first.task_feature_lengths
    indicator = ('inputs_indicator',) if has_inputs else ()
    return Config(
      batch_specs.RowSpecsProvider,
      batch_size=first.batch_size,
      seq_len=self.MAX_SEQ_LEN,
      ints=('ids', 'labels', 'segment_ids', 'segment_pos', *indicator),
      floats=('paddings', 'weights'),
      weights=('eval_sample_weights',),
    )

  def _seqio_input(
    self,
    name: str,
    mixture: str,
    split: str,
    *,
    is_training: bool,
    converter: Config[lm_features.LanguageModelFeatures],
  ) -> InputConfig:
    batch_size, hosts = rows_over_hosts(self.PERCORE_BATCH_SIZE)
    lengths = {'targets': self.MAX_SEQ_LEN}
    if converter.weights_on_targets_only:
      lengths = {'targets': _TARGETS, 'inputs': self.MAX_SEQ_LEN - _TARGETS}
    seed = self.TRAIN_INPUT_RANDOM_SEED if is_training else _EVAL_SEED
    return Config(
      seqio_input.SeqIOInput,
      name=name,
      mixture_name=mixture,
      split_name=split,
      task_feature_lengths=lengths,
      feature_converter=converter,
      is_training=is_training,
      repeat=is_training,
      shuffle=is_training,
      input_random_seed=seed,
      batch_size=batch_size,
      num_infeed_hosts=hosts,
      reset_for_eval=not is_training,
    )


class PileUnsupervisedDataset(SeqIODataset):
  """The Pile, packed in training.

  References: https://arxiv.org/abs/2101.00027
  """

  # Whether training batches hold several documents per row; set by the model.
  PACKED_INPUT: bool
  # Trains on one constant synthetic batch instead of the data set.
  SYNTHETIC_DATA = False

  def datasets(self) -> list[InputConfig]:
    return [self._dataset(is_training) for is_training in (True, False)]

  def _dataset(self, is_training: bool) -> InputConfig:
    if self.SYNTHETIC_DATA:
      batch_size, hosts = rows_over_hosts(self.PERCORE_BATCH_SIZE)
      return Config(
        input_generator.SyntheticLmData,
        batch_size=batch_size,
        num_infeed_hosts=hosts,
        seq_len=self.MAX_SEQ_LEN,
        is_training=is_training,
      )
    packs = is_training and self.PACKED_INPUT
    return self._seqio_input(
      'PileTrain' if is_training else 'PileValidation',
      pile_lambada_boolq_tasks.PILE,
      'train' if is_training else 'validation',
      is_training=is_training,
      converter=Config(lm_features.LanguageModelFeatures, pack=packs),
    )


class LambadaDataset(SeqIODataset):
  """The last words of passages, to be told from all before them.

  References: LAMBADA, https://arxiv.org/abs/1606.06031
  """

  def datasets(self) -> list[InputConfig]:
    lambada = self._seqio_input(
      'LambadaValidation',
      pile_lambada_boolq_tasks.LAMBADA,
      'test',
      is_training=False,
      converter=Config(
        lm_features.LanguageModelFeatures, weights_on_targets_only=True
      ),
    )
    return [lambada.set(eval_loop_num_batches=-1)]


class BoolQDataset(SeqIODataset):
  """Questions on passages, to be answered by yes or no.

  References: BoolQ, https://arxiv.org/abs/1905.10044
  """

  PERCORE_BATCH_SIZE = 8
  MAX_SEQ_LEN = 4096
  BOS_ID = 1
  EOS_ID = 2
  # What "yes" and "no" are in LLaMA's vocabulary.
  TRUE_TOKEN = 4874
  FALSE_TOKEN = 694

  def datasets(self) -> list[InputConfig]:
    return [self._dataset(is_training) for is_training in (True, False)]

  def _dataset(self, is_training: bool) -> InputConfig:
    boolq = self._seqio_input(
      'BoolQ',
      pile_lambada_boolq_tasks.BOOLQ,
      'train' if is_training else 'validation',
      is_training=is_training,
      converter=Config(
        lm_features.LanguageModelFeatures,
        weights_on_targets_only=True,
        bos_id=self.BOS_ID,
        eos_id=self.EOS_ID,
      ),
    )
    return boolq.set(eval_loop_num_batches=-1)


def rows_over_hosts(percore: float) -> tuple[int, int]:
  """Returns (rows per host, hosts that read) for so many rows per device.

  Raises:
    ValueError: there is no row for this host, or not the same number for all.
  """
  local, processes = jax.local_device_count(), jax.process_count()
  rows = int(percore * local * processes + 1e-6)
  per_host = (
    int(percore * local) if percore >= 1 else math.ceil(percore * local)
  )
  if not rows or rows % per_host:
    raise ValueError(
      f'PERCORE_BATCH_SIZE={percore} on {processes} hosts of {local} devices '
      f'makes {rows} rows a step, want a multiple of {per_host or 1}; change it'
    )
  return per_host, rows // per_host
