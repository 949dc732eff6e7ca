# SPDX-License-Identifier: Apache-2.0
"""Data that any language model experiment takes by --set TRAIN_DATA=..."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from pax.inputs import grain_input, lm_input
from pax.inputs.seqio import tasks as seqio_tasks
from pax.inputs.tokens import huggingface_tokenizers, tokenizers
from pax.tasks.lm import lm_benchmarks
from praxis import base_input, pax_fiddle

Config = pax_fiddle.Config
InputConfig = Config[base_input.BaseInput]

# Files of one data set, or of a mixture with weights.
Data = str | Mapping[str, float]

# Name of an EVAL_DATA without names.
_HELD_OUT = 'held_out'


class LanguageModelData(lm_benchmarks.LanguageModelBenchmarks):
  """Replaces the data of an experiment by files, if TRAIN_DATA is set.

  --set TRAIN_DATA=/data/train.bin --set EVAL_DATA=/data/held_out.bin
  --set TRAIN_DATA='{"/data/web*.bin": 0.8, "/data/code*.bin": 0.2}'
  --set TRAIN_DATA_STAGES='{40960000: {"/data/math.bin": 1.0}}'
  --set EVAL_DATA='{"web": "/data/web_eval.bin", "code": "/data/code_eval.bin"}'
  """

  # Files of tokens or text, separated by commas, or with the weights of a
  # mixture; None keeps the data of the experiment.
  TRAIN_DATA: str | Mapping[str, float] | None = None
  # Mixtures that replace TRAIN_DATA, by the number of rows after which they
  # begin, which is that of steps times the batch size.
  TRAIN_DATA_STAGES: Mapping[int, Mapping[str, float]] | None = None
  # Tokenizer of files of text: *.model, a tokenizer.json, or bytes; None is
  # that of the experiment. Without TRAIN_DATA the vocabulary of the SeqIO tasks
  # of the experiment, if they tokenize text: *.model.
  TOKENIZER: str | None = None
  # Field with the text in JSON lines, Parquet, Arrow and tf.train.Example.
  TEXT_FIELD = 'text'
  # Files that are evaluated once each time, as one data set, `held_out`, or as
  # several with names; None evaluates nothing.
  EVAL_DATA: str | Mapping[str, float] | Mapping[str, Data] | None = None
  # Number of batches that each evaluation takes of each data set of EVAL_DATA,
  # always the same; None is all.
  EVAL_MAX_BATCHES: int | None = None
  # How documents become rows: best_fit, first_fit, contiguous or truncate; None
  # is best_fit for files that record where documents start, else contiguous.
  DATA_LAYOUT: str | None = None
  # Function `module:function` of (host_index, num_hosts, seed) that returns a
  # data set of Grain with rows for training, instead of TRAIN_DATA; and its
  # worker processes.
  GRAIN_DATASET: str | None = None
  GRAIN_WORKERS = 0
  # Seed of the order of the training data.
  DATA_SEED = 0
  # Number of corrupt records that a process replaces by padding.
  MAX_CORRUPT_RECORDS = 0

  # Vocabulary size of the model; set by the experiment.
  VOCAB_SIZE: int

  def with_data(self, inputs: Sequence[InputConfig]) -> list[InputConfig]:
    """Returns the inputs of TRAIN_DATA and EVAL_DATA instead of `inputs`.

    Args:
      inputs: The training and other inputs of the experiment, which are
        returned if neither TRAIN_DATA nor GRAIN_DATASET is set; else the batch
        sizes are theirs.

    Raises:
      ValueError: A constant would have no effect, or EVAL_DATA has names and
        weights, or a name that no input may have.
    """
    has_files = self.TRAIN_DATA is not None
    if has_files and self.GRAIN_DATASET is not None:
      raise ValueError(
        'TRAIN_DATA or GRAIN_DATASET must be None, got'
        f' {self.TRAIN_DATA!r} and {self.GRAIN_DATASET!r}; set one of them'
      )
    if self.TRAIN_DATA_STAGES and not has_files:
      raise ValueError(
        'TRAIN_DATA_STAGES need TRAIN_DATA, the data before them, got none with'
        f' TRAIN_DATA_STAGES={self.TRAIN_DATA_STAGES!r}; set TRAIN_DATA'
      )
    if self.EVAL_DATA and not (has_files or self.GRAIN_DATASET):
      raise ValueError(
        'EVAL_DATA needs TRAIN_DATA or GRAIN_DATASET, got neither with'
        f' EVAL_DATA={self.EVAL_DATA!r}; the data of an experiment have'
        ' evaluation data of their own'
      )
    own = {input_p.is_training: input_p for input_p in inputs}
    own_train = own.get(True, inputs[0])
    if self.GRAIN_DATASET is not None:
      replaced = [self._grain_input(own_train)]
    elif self.TRAIN_DATA is not None:
      train_p = self._data_input(own_train, self.TRAIN_DATA)
      replaced = [train_p.set(data_stages=self.TRAIN_DATA_STAGES)]
    else:
      return list(inputs)
    own_eval = own.get(False, inputs[0])
    for name, data in _eval_sets(self.EVAL_DATA).items():
      replaced.append(
        self._data_input(own_eval, data).set(
          name=name,
          is_training=False,
          reset_for_eval=True,
          eval_loop_num_batches=None,
          max_batches=self.EVAL_MAX_BATCHES,
        )
      )
    return replaced

  def seqio_task(self, name: str) -> dict[str, Any]:
    """Returns the fields of SeqIOInput for a task with the TOKENIZER.

    Args:
      name: Of a task that `seqio_tasks.provides_task` registers.

    Raises:
      ValueError: TOKENIZER is no SentencePiece model.
    """
    is_replaced = self.TRAIN_DATA is not None or self.GRAIN_DATASET is not None
    if self.TOKENIZER is None or is_replaced:
      return {'mixture_name': name}
    if not self.TOKENIZER.endswith('.model'):
      raise ValueError(
        f'TOKENIZER of the SeqIO task {name!r} must be a SentencePiece model,'
        f' *.model, got {self.TOKENIZER!r}; other tokenizers need TRAIN_DATA'
      )
    return {
      'mixture_or_task': Config(
        seqio_tasks.task_with_vocabulary,
        name=name,
        sentencepiece_model=self.TOKENIZER,
      )
    }

  def _grain_input(self, own: InputConfig) -> InputConfig:
    return Config(
      grain_input.GrainInput,
      name='train',
      make_dataset=self.GRAIN_DATASET,
      num_workers=self.GRAIN_WORKERS,
      batch_size=own.batch_size,
      num_infeed_hosts=own.num_infeed_hosts,
      input_random_seed=self.DATA_SEED,
      is_training=True,
    )

  def _data_input(
    self, own: InputConfig, data: str | Mapping[str, float]
  ) -> InputConfig:
    return Config(
      lm_input.LanguageModelInput,
      name='train',
      data=data,
      batch_size=own.batch_size,
      num_infeed_hosts=own.num_infeed_hosts,
      seq_len=self.MAX_SEQ_LEN,
      tokenizer_tpl=self._tokenizer(),
      text_field=self.TEXT_FIELD,
      vocab_size=getattr(self, 'VOCAB_SIZE', None),
      layout=self.DATA_LAYOUT,
      input_random_seed=self.DATA_SEED,
      max_corrupt_records=self.MAX_CORRUPT_RECORDS,
      is_training=True,
    )

  def _tokenizer(self) -> Config[tokenizers.Tokenizer] | None:
    """Returns the tokenizer of files of text."""
    if self.TOKENIZER is None:
      return None
    return huggingface_tokenizers.by_name(self.TOKENIZER)


def _eval_sets(
  eval_data: str | Mapping[str, float] | Mapping[str, Data] | None,
) -> dict[str, Any]:
  """Returns the data sets of EVAL_DATA by name.

  Raises:
    ValueError: See `LanguageModelData.with_data`.
  """
  if eval_data is None:
    return {}
  if not isinstance(eval_data, Mapping):
    return {_HELD_OUT: eval_data}
  weights = {
    key: value
    for key, value in eval_data.items()
    if isinstance(value, numbers.Real)
  }
  if len(weights) == len(eval_data):
    return {_HELD_OUT: eval_data}
  if weights:
    raise ValueError(
      'EVAL_DATA must be names with data, such as {"web": "/data/web.bin"}, or'
      ' files with weights, such as {"/data/web.bin": 0.8}, got the weights'
      f' {weights} among data; give a mixture a name, too'
    )
  for name, data in eval_data.items():
    is_text = isinstance(name, str)
    if not is_text or not base_input.VALID_NAME.fullmatch(name):
      raise ValueError(
        'EVAL_DATA must have names that match'
        f' {base_input.VALID_NAME.pattern}, got {name!r}; they become parts of'
        ' directory names and summary tags, and weights are numbers'
      )
    if not isinstance(data, str | Mapping | Sequence):
      raise ValueError(
        f'EVAL_DATA[{name!r}] must be files or a mixture of files with weights,'
        f' got {data!r}'
      )
  return dict(eval_data)
