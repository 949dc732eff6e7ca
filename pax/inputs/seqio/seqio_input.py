# SPDX-License-Identifier: Apache-2.0
"""Input of SeqIO tasks and mixtures."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from pax.inputs.seqio import (
  dataset_iterator,
  datasets,
  errors,
  lm_features,
  metrics,
  tasks,
)
from pax.inputs.seqio import targets as seqio_targets
from praxis import base_input, pax_fiddle, py_utils, pytypes

NestedMap = py_utils.NestedMap
_EVAL_SEED = 42
# Types of arrays that devices take.
_DEVICE_KINDS = 'biufcV'
# Keys of states of older checkpoints.
_NUM_EXAMPLES, _ROW = 'examples', 'row'


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
  until all have the same number of batches. Rows have the id of their example
  (`py_utils.get_enumeration_id`), -1 in training and in rows of padding.

  The state is that of the tf.data iterator, which continues without reading
  data again. Where a part of the dataset has no state, such as a Python
  generator, it is the number of batches, and restoring it reads and discards
  as many; the order must then be reproducible: set `input_random_seed`.

  References: SeqIO, https://arxiv.org/abs/2203.17189
  """

  # Name of a task or mixture in SeqIO's registry, or the object; exactly one.
  mixture_name: str | None = None
  mixture_or_task: Any = None
  # Split of the data: 'train', 'validation', 'test', or another of the task.
  split_name: str | None = None
  # Must be False: the deterministic data are not public.
  deterministic_input: bool = False
  # Maximum length of each feature of the task, in tokens.
  task_feature_lengths: Mapping[str, int] | None = None
  # The seqio.FeatureConverter that converts examples to rows.
  feature_converter: Any = None
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
  # Number of rows of this host to evaluate; None counts them by reading all.
  eval_num_examples: int | None = None
  # tfds.ReadConfig of the whole process.
  read_config: Any = None
  # Ignored: deterministic data are not public.
  deterministic_input_start_index: pax_fiddle.Config[DeterministicInput] = (
    pax_fiddle.template_field(DeterministicInput)
  )
  # With input_checkpointing_enabled: whether the state of the iterator has
  # positions in files instead of buffered examples, and whether the order is
  # that of TFDS's index shuffle, which such states need.
  enable_symbolic_checkpointing: bool | None = True
  experimental_enable_index_shuffle: bool | None = True
  # Whether one epoch of evaluation is kept in memory.
  eval_enable_cache: bool = True
  # Whether reading starts with the iterator instead of at its first batch.
  warm_start: bool = True
  # For metrics: length of targets; None is that of task_feature_lengths.
  eval_metrics_targets_length: int | None = None
  # For metrics: features of the examples that are kept; None is all.
  eval_metrics_filter_targets_fields: Sequence[str] | None = None
  # Whether targets of metrics are written to the log directory.
  log_preprocessed_targets: bool | None = False
  # Whether metrics take targets from the examples of this input instead of
  # reading them again; with one host only.
  use_targets_from_input_ds: bool = False

  # The tf.data.Dataset of batches.
  dataset: Any = dataclasses.field(init=False, repr=False)
  # The tf.data.Dataset of examples, with use_targets_from_input_ds.
  cached_input_ds: Any = dataclasses.field(init=False, repr=False)
  # Whether `init_targets` was called, which sets the following.
  is_targets_init: bool = dataclasses.field(init=False, repr=False)
  # Datasets of the examples of all hosts with ids, without and with ragged
  # features; their iterators; the names of the features.
  targets_ds: Any = dataclasses.field(init=False, repr=False)
  targets_ds_ori: Any = dataclasses.field(init=False, repr=False)
  targets_iter: Any = dataclasses.field(init=False, repr=False)
  targets_iter_ori: Any = dataclasses.field(init=False, repr=False)
  ds_ragged_tensor_keys: list[str] = dataclasses.field(init=False, repr=False)
  ds_non_ragged_tensor_keys: list[str] = dataclasses.field(
    init=False, repr=False
  )

  # paxml defines it in this class.
  DeterministicInput = DeterministicInput

  def __post_init__(self):
    self._check_names()
    if not self.name:
      self.name = f'{self._task_name}_{self.split_name}'
    if not self.is_training and self.input_random_seed is None:
      self.input_random_seed = _EVAL_SEED
    super().__post_init__()
    self._check_settings()
    self._seqio = tasks.load(f'the input {self.name!r}')
    self.configure_tf_data_options(self.read_config)
    self._task = self.mixture_or_task or tasks.find(
      self._seqio, self._task_name
    )
    self._check_scoring()
    self.is_targets_init = False
    # In a cycle of references the iterators would wait for the collector.
    self._target_reader = seqio_targets.TargetReader(weakref.proxy(self))
    self.cached_input_ds = None
    self.dataset = None
    self._start()

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
    """Whether metrics take targets from the examples of this input."""
    has_all_examples = not self.is_training and self.num_infeed_hosts == 1
    return self.use_targets_from_input_ds and has_all_examples

  @property
  def is_mixture(self) -> bool:
    """Whether the input reads a mixture of tasks."""
    return isinstance(self._task, self._seqio.Mixture)

  @property
  def has_large_state(self) -> bool:
    """Whether the state is large: it may have buffered examples."""
    return True

  def configure_tf_data_options(self, read_config: Any = None) -> None:
    """Sets how TFDS and tf.data read, for the whole process.

    Args:
      read_config: A tfds.ReadConfig, which gets the options; None is a new one.
    """
    tf = tasks.load_tensorflow()
    tfds = importlib.import_module('tensorflow_datasets')
    config = tfds.ReadConfig() if read_config is None else read_config
    if config.options is None:
      config.options = tf.data.Options()
    if self.warm_start:
      config.options.experimental_warm_start = True
    if self.input_checkpointing_enabled and self.enable_symbolic_checkpointing:
      config.options.experimental_symbolic_checkpoint = True
      config.experimental_index_shuffle = bool(
        self.experimental_enable_index_shuffle
      )
    tasks.load(f'the input {self.name!r}').set_tfds_read_config_override(config)

  def get_next(self) -> NestedMap:
    """Returns the next batch.

    An evaluation with one host also returns features that are text.

    Raises:
      StopIteration: the epoch has ended.
      ValueError: the data cannot be read.
    """
    with self._explaining_errors():
      batch = next(self._iter)
    if not self.is_training and self.num_infeed_hosts == 1:
      return batch
    return batch.Filter(lambda x: x.dtype.kind in _DEVICE_KINDS)

  def reset(self) -> None:
    super().reset()
    self._start()
    if self.is_targets_init:
      self.init_targets_iter()

  def save(self, checkpoint_path: str | os.PathLike[str]) -> None:
    """Writes the state of the iterator as a checkpoint of TensorFlow."""
    self._iter.save(checkpoint_path)

  def restore(self, checkpoint_path: str | os.PathLike[str]) -> None:
    """Restores the state of the iterator from the checkpoint of `save`."""
    super().reset()
    self._iter.restore(checkpoint_path)

  def ids_to_strings(
    self,
    ids: pytypes.NpTensor,
    lengths: pytypes.NpTensor | None,
    key: str | None = None,
  ) -> Sequence[str]:
    ids = np.atleast_2d(ids)
    if lengths is None:
      lengths = np.full(len(ids), ids.shape[1])
    pairs = zip(ids, np.atleast_1d(lengths), strict=True)
    vocabulary = self._vocabulary(key)
    return [vocabulary.decode(row[: int(n)].tolist()) for row, n in pairs]

  def targets_by_id(self) -> Mapping[str, NestedMap]:
    """Returns the examples of the next evaluation by enumeration id."""
    with self._explaining_errors():
      return self._target_reader.read()

  def compute_metrics(
    self,
    decoder_outputs: Sequence[tuple[str | None, NestedMap]],
    score_metrics: bool = False,
    verbose_entries: int | None = 0,
    plain_text_output: TextIO | None = None,
  ) -> list[metrics.MetricValues]:
    """Returns the values of each metric of the task; see `seqio_metrics`.

    Args:
      decoder_outputs: (enumeration id, outputs) of the examples of all hosts.
      score_metrics: Whether to compute metrics of scores instead of those of
        decoded texts.
      verbose_entries: Number of examples to log.
      plain_text_output: File that receives the decoded texts.
    """
    return metrics.compute_metrics(
      self, decoder_outputs, score_metrics, verbose_entries, plain_text_output
    )

  @property
  def _lengths(self) -> Mapping[str, int]:
    """The lengths of features; `_check_names` ensures that they are set."""
    return self.task_feature_lengths or {}

  @property
  def _task_name(self) -> str:
    return self.mixture_name or self.mixture_or_task.name

  @property
  def _is_padded_epoch(self) -> bool:
    """Whether this is an evaluation of one padded epoch."""
    return (
      not self.is_training
      and self.reset_for_eval
      and self.eval_auto_pad
      and not self.should_repeat
    )

  def _start(self, num_batches: int = 0) -> None:
    """Makes the iterator, after a number of batches."""
    with self._explaining_errors():
      if self.dataset is None or self.should_shuffle:
        # A second iterator of a shuffled dataset has another order.
        self.dataset = self._batches()
      self._iter = dataset_iterator.DatasetIterator(
        self.dataset, self.name, num_batches
      )

  def _batches(self) -> datasets.Dataset:
    """Returns the dataset of the batches of this host."""
    shard = (self.infeed_host_index, self.num_infeed_hosts)
    examples = self._examples(shard)
    rows = self._rows(examples, None if self.is_training else shard)
    if self._is_padded_epoch:
      rows = self._padded_epoch(rows)
    # Parallel calls would put whole batches into states.
    batches = rows.batch(self.batch_size, drop_remainder=self.drop_remainder)
    if self.is_training and self.num_batches_to_skip:
      return batches.skip(self.num_batches_to_skip)
    if not self.is_training:
      return datasets.without_autotuning(batches)
    return batches

  def _examples(self, shard: datasets.Shard | None) -> datasets.Dataset:
    """Returns the examples of a shard, or of all; caches them for targets."""
    lengths = dict(self._lengths)
    targets_length = self.eval_metrics_targets_length or 0
    is_cached = self.should_use_targets_from_input_ds and shard is not None
    is_longer = is_cached and targets_length > lengths.get('targets', np.inf)
    if is_longer:
      lengths['targets'] = targets_length
    dataset = self._read(
      lengths,
      shard,
      shuffle=self.should_shuffle and shard is not None,
      num_epochs=-1 if self.should_repeat and shard is not None else 1,
    )
    if is_cached:
      self.cached_input_ds = dataset
    if is_longer:
      return self._trimmed(dataset, self._lengths)
    return dataset

  def _read(
    self,
    lengths: Mapping[str, int],
    shard: datasets.Shard | None,
    shuffle: bool = False,
    num_epochs: int = 1,
  ) -> datasets.Dataset:
    """Returns examples of the task.

    Args:
      lengths: Maximum length of each feature.
      shard: The shard; None is all examples.
      shuffle: Whether to shuffle.
      num_epochs: Number of repetitions; -1 is without end.
    """
    arguments = {}
    passthrough = getattr(self.feature_converter, '_passthrough_features', None)
    if self.is_mixture and passthrough:
      arguments['passthrough_features'] = passthrough
    return self._task.get_dataset(
      sequence_length=dict(lengths),
      split=self.split_name,
      shuffle=shuffle,
      num_epochs=num_epochs,
      shard_info=shard and self._seqio.ShardInfo(*shard),
      use_cached=self.use_cached,
      seed=self.input_random_seed,
      trim_output_features=self.trim_output_features,
      try_in_mem_cache=self.try_in_mem_cache,
      **arguments,
    )

  def _trimmed(
    self, dataset: datasets.Dataset, lengths: Mapping[str, int]
  ) -> datasets.Dataset:
    features = self._task.output_features
    return self._seqio.utils.trim_dataset(dataset, lengths, features)

  def _rows(
    self, examples: datasets.Dataset, shard: datasets.Shard | None
  ) -> datasets.Dataset:
    """Returns the rows of examples, with ids if there is a shard."""
    rows = self.feature_converter(
      examples, task_feature_lengths=self.task_feature_lengths
    )
    return datasets.add_sample_weights(datasets.add_ids(rows, shard))

  def _padded_epoch(self, rows: datasets.Dataset) -> datasets.Dataset:
    """Returns rows with padding to the number of batches of all hosts.

    Raises:
      ValueError: The split has no examples.
    """
    if self.eval_num_examples:
      rows = rows.take(self.eval_num_examples)
    if self.eval_enable_cache:
      # Preprocessors may be random: each evaluation has the same rows.
      rows = rows.cache()
    num_rows = self.eval_num_examples or datasets.num_elements(rows)
    batch_size = self.get_batch_size(self)
    num_batches = _max_over_hosts(-(-num_rows // batch_size))
    if not num_batches:
      raise ValueError(f'the split {self.split_name!r} must have examples')
    first = rows.take(1)
    if not datasets.num_elements(first):
      # The shard of this host is empty.
      first = self._rows(self._examples(None), (0, 1)).take(1)
    padding = datasets.padding_rows(first, self.annotate_padding_fields)
    # eval_num_examples may be more than the split has.
    return datasets.take_and_end(
      rows.concatenate(padding.repeat()), num_batches * batch_size
    )

  def init_targets(self) -> None:
    """Makes the datasets and iterators of the targets of metrics."""
    with self._explaining_errors():
      targets = self._targets()
    self.targets_ds, self.targets_ds_ori = targets.dataset, targets.unfiltered
    self.ds_ragged_tensor_keys = targets.ragged_keys
    self.ds_non_ragged_tensor_keys = targets.other_keys
    self.num_target_examples = targets.num_examples
    self.is_targets_init = True
    self.init_targets_iter()

  def init_targets_iter(self) -> None:
    """Makes the iterators of targets, at the first example."""
    self.targets_iter = self.targets_ds.as_numpy_iterator()
    # Ragged features have no numpy array.
    self.targets_iter_ori = iter(self.targets_ds_ori)

  def _targets(self) -> datasets.Targets:
    lengths = dict(self._lengths)
    if self.eval_metrics_targets_length:
      lengths['targets'] = self.eval_metrics_targets_length
    if self.cached_input_ds is not None:
      dataset = self.cached_input_ds
      if lengths.get('targets', 0) < self._lengths.get('targets', 0):
        dataset = self._trimmed(dataset, lengths)
      num_examples = 0 if self.should_repeat else datasets.num_elements(dataset)
      dataset = datasets.add_ids(dataset, (0, 1))
    else:
      dataset, num_examples = datasets.interleaved_shards(
        lambda shard: self._read(lengths, shard),
        self.num_infeed_hosts,
        self.should_repeat,
      )
    return datasets.split_ragged(
      datasets.without_autotuning(dataset), num_examples
    )

  def vocabularies(self) -> Mapping[str, base_input.Vocabulary]:
    return tasks.vocabularies(self._task)

  def vocabulary_sizes(self) -> Mapping[str, int]:
    return tasks.vocabulary_sizes(self._task)

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
    self._check_end(self.should_repeat)
    if self.eval_loop_num_batches is None and self.should_repeat:
      raise ValueError(
        f'eval_loop_num_batches of {self.name!r} must be set with repeat=True, '
        'got None: the evaluation would not end'
      )
    for name in ('eval_num_examples', 'num_batches_to_skip'):
      # tf.data takes negative numbers as all elements.
      if (value := getattr(self, name) or 0) < 0:
        raise ValueError(
          f'{name} of {self.name!r} must be at least 0, got {value}'
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

  @contextlib.contextmanager
  def _explaining_errors(self) -> Iterator[None]:
    """Replaces errors of readers by a ValueError that names the data."""
    with errors.explained(
      f'split {self.split_name!r} of the SeqIO task {self._task_name!r}, which'
      f' the input {self.name!r} reads',
      lambda: tasks.files(self._task, str(self.split_name)),
    ):
      yield

  def data_fingerprint(self) -> Mapping[str, Any]:
    return {
      'task': self._task_name,
      'split': str(self.split_name),
      'feature lengths': dict(self._lengths),
      'feature converter': type(self.feature_converter).__name__,
      'batch size': self.batch_size,
      'number of hosts': self.num_infeed_hosts,
      'seed': self.input_random_seed,
    }

  def _get_state_internal(self) -> base_input.State:
    return self._iter.get_state()

  def _set_state_internal(self, state: base_input.State) -> None:
    if isinstance(state, bytes):
      self._iter.set_state(state)
    elif state.keys() == {dataset_iterator.NUM_BATCHES}:
      self._start(state[dataset_iterator.NUM_BATCHES])
    elif state.keys() == {_NUM_EXAMPLES, _ROW}:
      self._start(self._num_batches_of(state[_NUM_EXAMPLES], state[_ROW]))
    else:
      raise ValueError(
        f'the state of {self.name!r} must be bytes, or have the key'
        f' {dataset_iterator.NUM_BATCHES!r}, got {sorted(state)}; it is of'
        ' another input'
      )

  def _num_batches_of(self, num_examples: int, num_rows: int) -> int:
    """Returns the number of batches in the state of an older checkpoint.

    Args:
      num_examples: Number of examples that were converted to rows.
      num_rows: Number of rows read after those.

    Raises:
      ValueError: They are no number of batches.
    """
    shard = (self.infeed_host_index, self.num_infeed_hosts)
    examples = self._examples(shard).take(num_examples)
    num_rows += datasets.num_elements(self._rows(examples, None))
    num_batches, rest = divmod(num_rows, self.get_batch_size(self))
    if rest:
      raise ValueError(
        f'the state of {self.name!r} is after {num_rows} rows, not a multiple'
        f' of batch_size = {self.batch_size}; restore the batch_size of the run'
        ' that saved it'
      )
    if self.is_training:
      num_batches -= self.num_batches_to_skip or 0
    return num_batches


def _max_over_hosts(value: int) -> int:
  if jax.process_count() == 1:
    return value
  return int(np.max(multihost_utils.process_allgather(np.array([value]))))
