# SPDX-License-Identifier: Apache-2.0
"""Input of SeqIO tasks and mixtures."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from pax.inputs import lm_features, seqio_tasks, sequence_features
from praxis import base_input, pax_fiddle, py_utils, pytypes

NestedMap = py_utils.NestedMap
_EVAL_SEED = 42
_FIELDS_OF_METRICS = (
  'eval_metrics_targets_length',
  'eval_metrics_filter_targets_fields',
  'log_preprocessed_targets',
  'use_targets_from_input_ds',
)


@dataclasses.dataclass(frozen=True)
class DeterministicInput:
  """The first example of deterministic data; such data are not public."""

  start_step: int = 0
  example_index_offset: int = 0


class SeqIOInput(base_input.BaseInput):
  """Reads rows of a SeqIO task or mixture; each host reads its own shard.

  Training repeats and shuffles by default. Evaluation with `reset_for_eval` is
  one epoch, in order: the last batch is padded with rows whose
  `eval_sample_weights`, float32 [B], are 0, and hosts add batches of such rows
  until all have the same number of batches.

  The state is the number of examples read. Restoring it reads and discards as
  many examples, so the order must be reproducible: set `input_random_seed`.

  References: SeqIO, https://arxiv.org/abs/2203.17189
  """

  DeterministicInput = DeterministicInput

  # Name of a task or mixture in SeqIO's registry, or the object; exactly one.
  mixture_name: str | None = None
  mixture_or_task: Any = None
  # Split of the data: 'train', 'validation', 'test', or another of the task.
  split_name: str | None = None
  # Must be False: the deterministic data are not public.
  deterministic_input: bool = False
  # Maximum length of each feature of the task, in tokens.
  task_feature_lengths: Mapping[str, int] | None = None
  # Converts examples to rows.
  feature_converter: (
    lm_features.LanguageModelFeatures
    | sequence_features.SequenceModelFeatures
    | None
  ) = None
  # Whether to shuffle and to repeat; None does so in training.
  shuffle: bool | None = None
  repeat: bool | None = None
  # Whether to read the offline cache of SeqIO.
  use_cached: bool = False
  # Whether evaluation pads to full batches, the same number on all hosts.
  eval_auto_pad: bool = True
  # Whether to drop a last batch that is not full.
  drop_remainder: bool = True
  # Number of batches to skip at the start of training.
  num_batches_to_skip: int | None = None
  # Whether SeqIO truncates features to task_feature_lengths.
  trim_output_features: bool = True
  # Whether SeqIO caches small data in memory.
  try_in_mem_cache: bool = True
  # Whether padding rows have `weights` 0 and `paddings` 1.
  annotate_padding_fields: bool = False
  # Vocabulary that decodes ids; None is that of the task.
  overridden_vocab: Any = None
  # Number of rows to evaluate; None is all.
  eval_num_examples: int | None = None
  # tfds.ReadConfig of the whole process.
  read_config: Any = None
  # Ignored: the input has an order of its own, and its state is the number of
  # examples read.
  deterministic_input_start_index: pax_fiddle.Config[DeterministicInput] = (
    pax_fiddle.template_field(DeterministicInput)
  )
  enable_symbolic_checkpointing: bool = True
  experimental_enable_index_shuffle: bool = True
  # Ignored: one epoch of evaluation is cached, and a thread prefetches.
  eval_enable_cache: bool = True
  warm_start: bool = True
  # Metrics of SeqIO tasks are not computed: these must have their defaults.
  eval_metrics_targets_length: int | None = None
  eval_metrics_filter_targets_fields: Sequence[str] | None = None
  log_preprocessed_targets: bool = False
  use_targets_from_input_ds: bool = False

  def __post_init__(self):
    self._check_names()
    if not self.name:
      self.name = f'{self._task_name}_{self.split_name}'
    if not self.is_training and self.input_random_seed is None:
      self.input_random_seed = _EVAL_SEED
    super().__post_init__()
    self._check_settings()
    self._seqio = seqio_tasks.load(f'the input {self.name!r}')
    self._task = self.mixture_or_task or seqio_tasks.find(
      self._seqio, self.mixture_name
    )
    self._check_scoring()
    if self.read_config is not None:
      self._seqio.set_tfds_read_config_override(self.read_config)
    self._epoch: list[NestedMap] | None = None
    self._start(0, 0)
    if self.is_training and self.num_batches_to_skip:
      skipped = self.num_batches_to_skip * self.batch_size
      for _ in itertools.islice(self._rows, skipped):
        pass

  @property
  def should_shuffle(self) -> bool:
    """Whether examples are shuffled; never in evaluation."""
    return self.is_training and self.shuffle is not False

  @property
  def should_repeat(self) -> bool:
    """Whether examples repeat indefinitely."""
    return self.is_training if self.repeat is None else self.repeat

  @property
  def mixture_or_task_inst(self) -> Any:
    """The task or mixture of SeqIO."""
    return self._task

  @property
  def task_inst(self) -> Any:
    """The task of SeqIO.

    Raises:
      ValueError: The input reads a mixture.
    """
    if self.is_mixture:
      raise ValueError(
        f'task_inst needs a task, got the mixture {self._task_name!r}; use'
        ' mixture_or_task_inst'
      )
    return self._task

  @property
  def is_deterministic(self) -> bool:
    """Whether the data are deterministic data of SeqIO; never."""
    return False

  @property
  def should_use_targets_from_input_ds(self) -> bool:
    """Whether metrics read targets from this input; never."""
    return False

  @property
  def is_mixture(self) -> bool:
    """Whether the input reads a mixture of tasks."""
    return isinstance(self._task, self._seqio.Mixture)

  def get_next(self) -> NestedMap:
    """Returns the next batch.

    Raises:
      StopIteration: the epoch has ended.
    """
    if self._is_one_epoch:
      return self._next_of_padded_epoch()
    rows = list(itertools.islice(self._rows, self.batch_size))
    if not rows or (len(rows) < self.batch_size and self.drop_remainder):
      raise StopIteration
    return _stack(rows, np.ones(len(rows), np.float32))

  def reset(self) -> None:
    self._start(0, 0)

  def ids_to_strings(
    self,
    ids: pytypes.NpTensor,
    lengths: pytypes.NpTensor | None,
    key: str | None = None,
  ) -> Sequence[str]:
    ids = np.atleast_2d(ids)
    if lengths is None:
      lengths = [ids.shape[1]] * len(ids)
    pairs = zip(ids, np.atleast_1d(lengths), strict=True)
    vocabulary = self._vocabulary(key)
    return [vocabulary.decode(row[: int(n)].tolist()) for row, n in pairs]

  @property
  def _task_name(self) -> str:
    return self.mixture_name or self.mixture_or_task.name

  @property
  def _is_one_epoch(self) -> bool:
    """Whether this is an evaluation of one padded epoch."""
    return (
      not self.is_training
      and self.reset_for_eval
      and self.eval_auto_pad
      and not self.should_repeat
    )

  def _start(self, examples: int, row: int) -> None:
    """Positions the input at a row of the group after `examples` examples."""
    self._examples, self._row = examples, row
    self._rows = self._iterate()

  def _iterate(self) -> Iterator[NestedMap]:
    """Yields rows and advances the position."""
    source = self._read(self._examples, self._shard())
    size = self.feature_converter.group_size(self.task_feature_lengths)
    while group := list(itertools.islice(source, size)):
      rows = self.feature_converter.rows(group, self.task_feature_lengths)
      while self._row < len(rows):
        self._row += 1
        yield rows[self._row - 1]
      self._examples, self._row = self._examples + len(group), 0

  def _read(self, first: int, shard: Any) -> Iterator[Mapping[str, Any]]:
    """Returns the examples of a shard, starting at index `first`."""
    data = self._task.get_dataset(
      sequence_length=dict(self.task_feature_lengths),
      split=self.split_name,
      shuffle=self.should_shuffle,
      num_epochs=-1 if self.should_repeat else 1,
      shard_info=shard,
      use_cached=self.use_cached,
      seed=self.input_random_seed,
      trim_output_features=self.trim_output_features,
      try_in_mem_cache=self.try_in_mem_cache,
    )
    return data.skip(first).as_numpy_iterator()

  def _shard(self) -> Any:
    return self._seqio.ShardInfo(
      index=self.infeed_host_index, num_shards=self.num_infeed_hosts
    )

  def _next_of_padded_epoch(self) -> NestedMap:
    if self._epoch is None:
      row = self._row
      self._start(0, 0)
      self._epoch = list(self._rows)
      num_batches = -(-self._num_counted_rows() // self.batch_size)
      self._num_batches = _max_over_hosts(num_batches)
      self._start(0, row)
    if self._row >= self._num_batches * self.batch_size:
      raise StopIteration
    rows = self._epoch[self._row : self._row + self.batch_size]
    rows = rows[: max(0, self._num_counted_rows() - self._row)]
    self._row += self.batch_size
    weights = np.zeros(self.batch_size, np.float32)
    weights[: len(rows)] = 1
    if num_missing := self.batch_size - len(rows):
      rows = rows + [self._padding_row()] * num_missing
    return _stack(rows, weights)

  def _num_counted_rows(self) -> int:
    """Returns the number of rows of this host that are evaluated."""
    return min(len(self._epoch), self.eval_num_examples or len(self._epoch))

  def _padding_row(self) -> NestedMap:
    """Returns a row that pads a batch."""
    row = self._epoch[0] if self._epoch else self._first_row_of_all_hosts()
    if self.annotate_padding_fields and 'weights' in row:
      row = NestedMap(row, weights=0 * row.weights)
      if 'paddings' in row:
        row.paddings = 1 - row.weights
    return row

  def _first_row_of_all_hosts(self) -> NestedMap:
    """Returns the first row of the unsharded data."""
    size = self.feature_converter.group_size(self.task_feature_lengths)
    group = list(itertools.islice(self._read(0, None), size))
    if not group:
      raise ValueError(f'the split {self.split_name!r} must have examples')
    return self.feature_converter.rows(group, self.task_feature_lengths)[0]

  def vocabularies(self) -> Mapping[str, base_input.Vocabulary]:
    """Returns the vocabularies of the features of the task.

    Features that are token ids already have none.
    """
    pass_through = self._seqio.PassThroughVocabulary
    return {
      name: _compared_vocabulary(feature.vocabulary)
      for name, feature in self._task.output_features.items()
      if not isinstance(feature.vocabulary, pass_through)
    }

  def _vocabulary(self, key: str | None) -> Any:
    if self.overridden_vocab is not None:
      return self.overridden_vocab
    features = {None: 'targets', 'tgt': 'targets', 'src': 'inputs'}
    if key not in features:
      raise ValueError(f"key must be None, 'tgt' or 'src', got {key!r}")
    return self._task.output_features[features[key]].vocabulary

  def _check_names(self) -> None:
    if bool(self.mixture_name) == (self.mixture_or_task is not None):
      raise ValueError(
        'set one of mixture_name and mixture_or_task, got '
        f'{self.mixture_name!r} and {self.mixture_or_task!r}'
      )
    for name in ('task_feature_lengths', 'feature_converter', 'split_name'):
      if not getattr(self, name):
        raise ValueError(f'{name} of {self._task_name!r} must be set')

  def _check_settings(self) -> None:
    if self.deterministic_input:
      raise ValueError(
        'deterministic_input must be False, got True; such data are not public'
      )
    for field in _FIELDS_OF_METRICS:
      if value := getattr(self, field):
        raise ValueError(
          f'{field} of {self.name!r} must have its default, got '
          f'{value!r}: metrics of SeqIO tasks are not computed; leave it out, '
          'and compute metrics in the model'
        )
    if self.eval_loop_num_batches is None and self.should_repeat:
      raise ValueError(
        f'eval_loop_num_batches of {self.name!r} must be set with repeat=True, '
        'got None: the evaluation would not end'
      )
    if self.is_training and self.split_name != 'train':
      logging.warning('%s trains on split %s', self.name, self.split_name)
    if not self.is_training and self.shuffle:
      logging.warning('%s: evaluation ignores shuffle=True', self.name)
    if not self.is_training and self.num_batches_to_skip:
      logging.warning('%s: evaluation ignores num_batches_to_skip', self.name)

  def _check_scoring(self) -> None:
    """Raises ValueError if a task that scores targets weights inputs too."""
    if self.is_training or not getattr(self._task, 'score_metric_fns', None):
      return
    converter = self.feature_converter
    is_lm = isinstance(converter, lm_features.LanguageModelFeatures)
    if is_lm and not converter.weights_on_targets_only:
      raise ValueError(
        f'weights_on_targets_only of {self.name!r} must be True because the '
        f'task scores targets, got {converter.weights_on_targets_only}; set it '
        'in feature_converter'
      )

  def _get_state_internal(self) -> base_input.State:
    return {'examples': self._examples, 'row': self._row}

  def _set_state_internal(self, state: base_input.State) -> None:
    self._start(int(state['examples']), int(state['row']))


def _stack(rows: Sequence[NestedMap], weights: np.ndarray) -> NestedMap:
  """Returns the batch of rows, without features that are not numeric."""
  batch = jax.tree.map(lambda *xs: np.stack(xs), *rows)
  return NestedMap(
    batch.Filter(lambda x: x.dtype.kind in 'biuf'), eval_sample_weights=weights
  )


def _compared_vocabulary(vocabulary: Any) -> base_input.Vocabulary:
  """Returns the SentencePiece model of a vocabulary, else its type and size."""
  name = f'{type(vocabulary).__name__} of {vocabulary.vocab_size} ids'
  model = getattr(vocabulary, 'sp_model', None)
  if not isinstance(model, bytes):
    return base_input.Vocabulary(name, name)
  path = getattr(vocabulary, 'sentencepiece_model_file', name)
  digest = hashlib.sha256(model).hexdigest()
  return base_input.Vocabulary(f'sha256:{digest}', str(path))


def _max_over_hosts(value: int) -> int:
  if jax.process_count() == 1:
    return value
  return int(np.max(multihost_utils.process_allgather(np.array([value]))))
