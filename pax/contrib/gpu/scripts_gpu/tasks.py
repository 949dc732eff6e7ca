# SPDX-License-Identifier: Apache-2.0
"""Data sets of the GPU experiments: the Pile, LAMBADA and BoolQ.

SeqIO reads them at the first batch, from TFDS or from files, with a vocabulary
in the environment variable VOCAB_PATH or in --set TOKENIZER
(`pax.inputs.seqio.pile_lambada_boolq_tasks`). Declaring, printing or compiling
an experiment needs neither SeqIO nor data.
"""

from __future__ import annotations

import math

import jax

from pax.inputs import batch_specs
from pax.inputs.seqio import lm_features, pile_lambada_boolq_tasks, seqio_input
from pax.tasks.lm import input_generator, lm_data
from praxis import base_input, pax_fiddle

Config = pax_fiddle.Config
InputConfig = Config[base_input.BaseInput]

concatenate_passage_and_question = (
  pile_lambada_boolq_tasks.concatenate_passage_and_question
)

# Maximum number of target tokens of an example with inputs; the other positions
# of a row are for the inputs.
_MAX_TARGETS_LEN = 64
_EVAL_SEED = 4321


class SeqIODataset(lm_data.LanguageModelData):
  """Base of the SeqIO data sets; all hosts that read have equal batch sizes."""

  # Rows per device; a fraction shares a row among devices.
  PERCORE_BATCH_SIZE: float = 1
  MAX_SEQ_LEN = 2048
  # Seed of the order of the training data; None is random.
  TRAIN_INPUT_RANDOM_SEED: int | None = None

  def get_input_specs_provider_params(
    self,
  ) -> Config[base_input.BaseInputSpecsProvider]:
    input_p = self.datasets()[0]
    if input_p.cls is not seqio_input.SeqIOInput:
      return Config(base_input.DatasetInputSpecsProvider, input_p=input_p)
    has_inputs = 'inputs' in input_p.task_feature_lengths
    indicator = ('inputs_indicator',) if has_inputs else ()
    return Config(
      batch_specs.RowSpecsProvider,
      batch_size=input_p.batch_size,
      seq_len=self.MAX_SEQ_LEN,
      ints=('ids', 'labels', 'segment_ids', 'segment_pos', *indicator),
      floats=('paddings', 'weights'),
      weights=('eval_sample_weights',),
      has_example_ids=True,
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
    batch_size, num_hosts = split_over_hosts(self.PERCORE_BATCH_SIZE)
    lengths = {'targets': self.MAX_SEQ_LEN}
    if converter.weights_on_targets_only:
      lengths = {
        'targets': _MAX_TARGETS_LEN,
        'inputs': self.MAX_SEQ_LEN - _MAX_TARGETS_LEN,
      }
    seed = self.TRAIN_INPUT_RANDOM_SEED if is_training else _EVAL_SEED
    return Config(
      seqio_input.SeqIOInput,
      name=name,
      split_name=split,
      task_feature_lengths=lengths,
      feature_converter=converter,
      is_training=is_training,
      repeat=is_training,
      shuffle=is_training,
      input_random_seed=seed,
      batch_size=batch_size,
      num_infeed_hosts=num_hosts,
      reset_for_eval=not is_training,
      **self.seqio_task(mixture),
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
    return self.with_data([self._dataset_common(t) for t in (True, False)])

  def _dataset_common(self, is_training: bool) -> InputConfig:
    if self.SYNTHETIC_DATA:
      batch_size, num_hosts = split_over_hosts(self.PERCORE_BATCH_SIZE)
      return Config(
        input_generator.SyntheticLmData,
        batch_size=batch_size,
        num_infeed_hosts=num_hosts,
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
  """Passages whose final word is to be predicted.

  References: LAMBADA, https://arxiv.org/abs/1606.06031
  """

  def datasets(self) -> list[InputConfig]:
    return self.with_data([self._dataset_common(is_training=False)])

  def _dataset_common(self, is_training: bool) -> InputConfig:
    input_p = self._seqio_input(
      'LambadaValidation',
      pile_lambada_boolq_tasks.LAMBADA,
      'test',
      is_training=is_training,
      converter=Config(
        lm_features.LanguageModelFeatures, weights_on_targets_only=True
      ),
    )
    return input_p.set(eval_loop_num_batches=-1)


class BoolQDataset(SeqIODataset):
  """Yes/no questions on passages.

  References: BoolQ, https://arxiv.org/abs/1905.10044
  """

  PERCORE_BATCH_SIZE = 8
  MAX_SEQ_LEN = 4096
  BOS_ID = 1
  EOS_ID = 2
  # Ids of "yes" and "no" in LLaMA's vocabulary.
  TRUE_TOKEN = 4874
  FALSE_TOKEN = 694

  def datasets(self) -> list[InputConfig]:
    return self.with_data([self._dataset_common(t) for t in (True, False)])

  def _dataset_common(self, is_training: bool) -> InputConfig:
    input_p = self._seqio_input(
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
    return input_p.set(eval_loop_num_batches=-1)


def split_over_hosts(percore: float) -> tuple[int, int]:
  """Returns (rows per host, number of hosts that read data).

  Args:
    percore: Rows per device.

  Raises:
    ValueError: The global batch size is not a multiple of the rows per host.
  """
  num_devices, num_hosts = jax.local_device_count(), jax.process_count()
  batch_size = int(percore * num_devices * num_hosts + 1e-6)
  if percore >= 1:
    per_host = int(percore * num_devices)
  else:
    per_host = math.ceil(percore * num_devices)
  if not batch_size or batch_size % per_host:
    raise ValueError(
      f'PERCORE_BATCH_SIZE={percore} on {num_hosts} hosts with {num_devices} '
      f'devices must give a global batch size divisible by {per_host or 1}, '
      f'got {batch_size}; change PERCORE_BATCH_SIZE'
    )
  return per_host, batch_size // per_host
