# SPDX-License-Identifier: Apache-2.0
"""Data that any language model experiment takes by --set TRAIN_DATA=..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pax.inputs import grain_input, lm_input
from pax.inputs.seqio import tasks as seqio_tasks
from pax.inputs.tokens import huggingface_tokenizers, tokenizers
from pax.tasks.lm import lm_benchmarks
from praxis import base_input, pax_fiddle

Config = pax_fiddle.Config
InputConfig = Config[base_input.BaseInput]


class LanguageModelData(lm_benchmarks.LanguageModelBenchmarks):
  """Replaces the data of an experiment by files, if TRAIN_DATA is set.

  --set TRAIN_DATA=/data/train.bin --set EVAL_DATA=/data/held_out.bin
  --set TRAIN_DATA='{"/data/web*.bin": 0.8, "/data/code*.bin": 0.2}'
  --set TRAIN_DATA_STAGES='{40960000: {"/data/math.bin": 1.0}}'
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
  # Files that are evaluated once each time; None evaluates nothing.
  EVAL_DATA: str | Mapping[str, float] | None = None
  # Number of batches of EVAL_DATA that each evaluation takes, always the same;
  # None is all.
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
      ValueError: A constant would have no effect.
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
    if self.EVAL_DATA is not None:
      held_out = self._data_input(own.get(False, inputs[0]), self.EVAL_DATA)
      replaced.append(
        held_out.set(
          name='held_out',
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
