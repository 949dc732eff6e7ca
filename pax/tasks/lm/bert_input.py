# SPDX-License-Identifier: Apache-2.0
"""Input of MLPerf's BERT: TFRecord files of masked documents."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pax.files import tf_records
from pax.inputs.records import (
  block_reader,
  file_fingerprints,
  shuffled_records,
  tfrecord_files,
)
from pax.inputs.rows import packing
from pax.tasks.lm import masking
from praxis import base_input, pax_fiddle, py_utils
from praxis.base_input import data_fingerprints

NestedMap = py_utils.NestedMap
# labels, masked_ids and masked_pos, each [length].
Document = dict[str, np.ndarray]


class TFRecordBertInput(base_input.BaseInput):
  """Masked documents from TFRecord files.

  A batch has labels, masked_ids, segment_ids and segment_pos, int32 [B, T],
  and masked_pos (1 at tokens to be predicted) and paddings, float32 [B, T].

  Training repeats indefinitely, and each host reads its own files. Evaluation
  is one epoch in order: consecutive batches belong to consecutive hosts, and
  padding rows complete the last batches, so that every host has equally many.
  (Upstream marks the padding rows as text, because it reads another key.)

  References:
    github.com/mlcommons/training/tree/master/language_model/tensorflow/bert
  """

  # Files, globs, folders or `name@shards`; a string may list several, separated
  # by commas.
  input_file: str | list[str] | None = None
  # Positions per row and per record.
  max_sequence_length: int = 512
  # Maximum number of masked tokens of a record.
  max_predictions_per_seq: int = 76
  # The separator at the end of both parts of a document; the first is removed.
  eos_token_id: int = 102
  # Number of documents in evaluation; has no effect, they are counted.
  eval_data_size: int = 10000
  # Size of the shuffle buffer in training, in documents.
  file_buffer_size: int = 10000
  # Whether several documents share a row in training.
  enable_packing: bool = False
  # Number of documents that are packed together.
  prepacking_batch_size: int = 1 << 14
  # Whether `mlm_augmenter` chooses new masked tokens each epoch, instead of
  # those in the records.
  remask: bool = False
  mlm_augmenter: masking.MaskedLmDataAugmenter = pax_fiddle.instance_field(
    masking.MaskedLmDataAugmenter
  )
  # Number of documents; informative only.
  num_samples: int = -1
  # Number of token ids of the model: records with others are errors; None does
  # not check.
  vocab_size: int | None = None

  def __post_init__(self):
    if not self.is_training:
      self.reset_for_eval = True
      self.enable_packing = False
      self.remask = False
    super().__post_init__()
    if not self.input_file:
      raise ValueError(
        f'input_file of {self.name!r} must name TFRecord files, got '
        f'{self.input_file!r}; for experiments of bert.py, pass --set '
        'TRAIN_FILES=/data/train* and --set EVAL_FILES=/data/eval*'
      )
    if self.remask:
      self._check_augmenter()
    self._paths = shuffled_records.expand(self.input_file)
    self._batches = 0
    if self.is_training:
      self._blocks = self._open_blocks()

  @property
  def mlm(self) -> masking.MaskedLmDataAugmenter:
    """The augmenter that chooses masked tokens."""
    return self.mlm_augmenter

  def data_fingerprint(self) -> data_fingerprints.Fingerprint:
    return self._fingerprint

  @functools.cached_property
  def _fingerprint(self) -> data_fingerprints.Fingerprint:
    return {
      'files': file_fingerprints.describe(self._paths),
      'seed': self.input_random_seed or 0,
      'file_buffer_size': self.file_buffer_size,
      'max_sequence_length': self.max_sequence_length,
      'enable_packing': self.enable_packing,
      'prepacking_batch_size': self.prepacking_batch_size,
      'num_infeed_hosts': self.num_infeed_hosts,
    }

  def get_next(self) -> NestedMap:
    batch_size = self.get_batch_size(self)
    if self.is_training:
      rows = self._blocks.take(batch_size)
    else:
      rows = self._next_eval_rows(batch_size)
    return _make_batch(rows, batch_size, self.max_sequence_length)

  def reset(self) -> None:
    """Starts the epoch again.

    Raises:
      ValueError: The input is for training, which has no epochs.
    """
    if self.is_training:
      raise ValueError(
        f'{self.name!r} repeats indefinitely and cannot be reset; set '
        'is_training=False'
      )
    super().reset()
    self._batches = 0

  def _check_augmenter(self) -> None:
    self.mlm_augmenter.validate()
    random_ids = self.mlm_augmenter.vocab_size
    if self.vocab_size is not None and random_ids > self.vocab_size:
      raise ValueError(
        f'mlm_augmenter.vocab_size of {self.name!r} must be at most vocab_size'
        f' = {self.vocab_size} of the model, got {random_ids}; --set'
        f' train_input.mlm_augmenter.vocab_size={self.vocab_size}'
      )

  def _host_paths(self) -> Sequence[str]:
    num_files = len(self._paths)
    if num_files % self.num_infeed_hosts:
      raise ValueError(
        f'the number of files of {self.name!r} must be a multiple of '
        f'num_infeed_hosts = {self.num_infeed_hosts}, got {num_files}; each '
        'host reads its own files: write the records to another number of files'
      )
    return self._paths[self.infeed_host_index :: self.num_infeed_hosts]

  def _open_blocks(self) -> block_reader.BlockReader:
    seed = self.input_random_seed or 0
    records = shuffled_records.ShuffledRecords(
      self._host_paths(), window=self.file_buffer_size, seed=seed
    )
    size = self.get_batch_size(self)
    if self.enable_packing:
      size = self.prepacking_batch_size
    return block_reader.BlockReader(
      records,
      self._parse_and_remask,
      self._make_rows,
      size=size,
      seeds=[seed, self.infeed_host_index],
    )

  def _parse_and_remask(
    self, record: bytes, random: np.random.Generator
  ) -> Document:
    document = self._parse(record)
    if self.remask:
      document['masked_ids'], document['masked_pos'] = self.mlm(
        document['labels'], random
      )
    return document

  def _make_rows(
    self, documents: list[Document], random: np.random.Generator
  ) -> list[list[Document]]:
    if not self.enable_packing:
      return [[document] for document in documents]
    rows = _pack_rows(documents, self.max_sequence_length)
    return [rows[i] for i in random.permutation(len(rows))]

  def _next_eval_rows(self, batch_size: int) -> list[list[Document]]:
    num_records = len(self._eval_records)
    if not num_records:
      raise ValueError(
        f'input_file of {self.name!r} must have records, got none in'
        f' {len(self._paths)} files such as {self._paths[0]}'
      )
    num_batches = -(-num_records // batch_size)
    if self._batches >= -(-num_batches // self.num_infeed_hosts):
      raise StopIteration
    batch = self._batches * self.num_infeed_hosts + self.infeed_host_index
    self._batches += 1
    start = batch * batch_size
    end = min(start + batch_size, num_records)
    return [[self._read_eval_document(i)] for i in range(start, end)]

  def _read_eval_document(self, index: int) -> Document:
    record = self._eval_records.read(index)
    try:
      return self._parse(record)
    except ValueError as e:
      raise ValueError(f'{self._eval_records.where(index)}: {e}') from e

  @functools.cached_property
  def _eval_records(self) -> tfrecord_files.RecordFiles:
    return tfrecord_files.RecordFiles(self._paths)

  def _parse(self, record: bytes) -> Document:
    """Returns a document without padding and without the first separator."""
    lengths = {
      'input_ids': self.max_sequence_length,
      'input_mask': self.max_sequence_length,
      'masked_lm_positions': self.max_predictions_per_seq,
      'masked_lm_ids': self.max_predictions_per_seq,
      'masked_lm_weights': self.max_predictions_per_seq,
    }
    features = tf_records.parse_example(record, tuple(lengths))
    example = {name: np.asarray(values) for name, values in features.items()}
    record_lengths = {name: len(example.get(name, ())) for name in lengths}
    if record_lengths != lengths:
      raise ValueError(
        f'a record of {self.name!r} must have the lengths {lengths}, got '
        f'{record_lengths}; set max_sequence_length and max_predictions_per_seq'
      )
    self._check_ids(example)
    masked_ids = example['input_ids'].astype(np.int32)
    num_masked = int(example['masked_lm_weights'].sum())
    positions = example['masked_lm_positions'][:num_masked]
    labels = masked_ids.copy()
    labels[positions] = example['masked_lm_ids'][:num_masked]
    masked_pos = np.zeros(len(masked_ids), np.float32)
    masked_pos[positions] = 1
    separators = np.flatnonzero(labels == self.eos_token_id)
    if not len(separators):
      raise ValueError(
        f'a document of {self.name!r} must have a token eos_token_id = '
        f'{self.eos_token_id}, got {labels[:20]}...; set eos_token_id'
      )
    is_text = example['input_mask'].astype(bool)
    is_text[separators[0]] = False
    return {
      'labels': labels[is_text],
      'masked_ids': masked_ids[is_text],
      'masked_pos': masked_pos[is_text],
    }

  def _check_ids(self, example: Mapping[str, Any]) -> None:
    """Raises ValueError if a token id is not one of the model."""
    for name in ('input_ids', 'masked_lm_ids'):
      if self.vocab_size is not None and len(ids := example[name]):
        if not 0 <= ids.min() <= ids.max() < self.vocab_size:
          raise ValueError(
            f'{name} of {self.name!r} must be in [0, vocab_size), got'
            f' {ids.min()} to {ids.max()} with vocab_size {self.vocab_size};'
            ' set VOCAB_SIZE of the experiment to that of the tokenizer'
          )

  def _get_state_internal(self) -> base_input.State:
    if self.is_training:
      return self._blocks.state
    return {'batches': self._batches}

  def _set_state_internal(self, state: base_input.State) -> None:
    if self.is_training:
      self._blocks.state = state
    else:
      self._batches = int(state['batches'])


def _pack_rows(documents: list[Document], seq_len: int) -> list[list[Document]]:
  """Returns rows of documents with at most `seq_len` tokens each."""
  plan = packing.plan([len(d['labels']) for d in documents], seq_len)
  return [
    [documents[i] for i in plan.documents[start:end]]
    for start, end in itertools.pairwise(plan.row_starts)
  ]


def _make_batch(
  rows: list[list[Document]], batch_size: int, seq_len: int
) -> NestedMap:
  """Returns a batch with these rows, and rows of padding after them."""
  shape = (batch_size, seq_len)
  int_names = ('labels', 'masked_ids', 'segment_ids', 'segment_pos')
  batch = NestedMap({name: np.zeros(shape, np.int32) for name in int_names})
  batch.masked_pos = np.zeros(shape, np.float32)
  batch.paddings = np.ones(shape, np.float32)
  for b, row in enumerate(rows):
    start = 0
    for segment_id, document in enumerate(row, start=1):
      length = len(document['labels'])
      columns = slice(start, start + length)
      for name, values in document.items():
        batch[name][b, columns] = values
      batch.segment_ids[b, columns] = segment_id
      batch.segment_pos[b, columns] = np.arange(length)
      batch.paddings[b, columns] = 0
      start += length
  return batch
