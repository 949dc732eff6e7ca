# SPDX-License-Identifier: Apache-2.0
"""Reads the records that MLPerf's BERT is trained on."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from pax import tf_records
from pax.inputs import block_reader, packing, shuffled_records, tfrecord_files
from pax.tasks.lm import masking
from praxis import base_input, pax_fiddle, py_utils

NestedMap = py_utils.NestedMap
# A document is a map of these, each [length].
Document = dict[str, np.ndarray]


class TFRecordBertInput(base_input.BaseInput):
  """Masked documents: what the tokens were, what the model sees, and where.

  A batch has labels, masked_ids, segment_ids and segment_pos, int32 [B, T],
  and masked_pos and paddings, float32 [B, T].

  Training goes on for ever; each host has files of its own. Evaluation goes
  through the documents once, in order, hosts taking batches in turn; rows of
  padding fill the last one, and hosts have equally many. (Upstream marks the
  rows that fill a batch as text, since it looks for another name.)

  References:
    github.com/mlcommons/training/tree/master/language_model/tensorflow/bert
  """

  # Files, globs, folders or `name@shards`; a string may hold several, with
  # commas between.
  input_file: str | list[str] | None = None
  # Positions per row and of a record.
  max_sequence_length: int = 512
  # Places for masked tokens that a record has.
  max_predictions_per_seq: int = 76
  # The token that ends both parts of a document; the first is taken out.
  eos_token_id: int = 102
  # How many documents evaluation has; they are counted all the same.
  eval_data_size: int = 10000
  # Among how many documents each is drawn in training.
  file_buffer_size: int = 10000
  # Whether several documents share a row in training.
  enable_packing: bool = False
  # How many documents are packed together.
  prepacking_batch_size: int = 1 << 14
  # Whether other tokens are masked each epoch than those that the records name.
  remask: bool = False
  # Chooses them.
  mlm_augmenter: masking.MaskedLmDataAugmenter = pax_fiddle.instance_field(
    masking.MaskedLmDataAugmenter
  )
  # How many documents there are, for people.
  num_samples: int = -1

  def __post_init__(self):
    if not self.is_training:
      self.reset_for_eval = True
      self.enable_packing = False
      self.remask = False
    super().__post_init__()
    if not self.input_file:
      raise ValueError(
        f'input_file of {self.name!r} must name files of records, got none; an '
        'experiment of bert.py wants --set TRAIN_FILES=/data/train* and --set '
        'EVAL_FILES=/data/eval*'
      )
    if self.remask:
      self.mlm_augmenter.validate()
    self._paths = shuffled_records.expand(self.input_file)
    self._batches = 0
    if self.is_training:
      self._blocks = self._open_blocks()

  def get_next(self) -> NestedMap:
    if self.is_training:
      rows = self._blocks.take(self.batch_size)
    else:
      rows = self._eval_rows()
    return _batch_of(rows, self.batch_size, self.max_sequence_length)

  def reset(self) -> None:
    if self.is_training:
      raise ValueError('training data have no end to be reset at')
    self._batches = 0

  def _own_paths(self) -> Sequence[str]:
    count = len(self._paths)
    if count % self.num_infeed_hosts:
      raise ValueError(
        f'the number of files of {self.name!r} must be a multiple of '
        f'num_infeed_hosts = {self.num_infeed_hosts}, got {count}; each host '
        'reads files of its own, so write the records into other files'
      )
    return self._paths[self.infeed_host_index :: self.num_infeed_hosts]

  def _open_blocks(self) -> block_reader.BlockReader:
    seed = self.input_random_seed or 0
    source = shuffled_records.ShuffledRecords(
      self._own_paths(), window=self.file_buffer_size, seed=seed
    )
    size = self.batch_size
    if self.enable_packing:
      size = self.prepacking_batch_size
    return block_reader.BlockReader(
      source,
      self._read,
      self._rows_of,
      size=size,
      seeds=[seed, self.infeed_host_index],
    )

  def _read(self, record: bytes, random: np.random.Generator) -> Document:
    document = self._parse(record)
    if self.remask:
      masked = self.mlm_augmenter(document['labels'], random)
      document['masked_ids'], document['masked_pos'] = masked
    return document

  def _rows_of(
    self, documents: list[Document], random: np.random.Generator
  ) -> list[list[Document]]:
    if not self.enable_packing:
      return [[document] for document in documents]
    rows = _packed(documents, self.max_sequence_length)
    return [rows[i] for i in random.permutation(len(rows))]

  def _eval_rows(self) -> list[list[Document]]:
    hosts = self.num_infeed_hosts
    count = -(-len(self._eval_records) // self.batch_size)
    if self._batches >= -(-count // hosts):
      raise StopIteration
    first = self._batches * hosts + self.infeed_host_index
    self._batches += 1
    rows = range(first * self.batch_size, (first + 1) * self.batch_size)
    return [
      [self._parse(self._eval_records.read(row))]
      for row in rows[: max(0, len(self._eval_records) - rows.start)]
    ]

  @functools.cached_property
  def _eval_records(self) -> tfrecord_files.RecordFiles:
    return tfrecord_files.RecordFiles(self._paths)

  def _parse(self, record: bytes) -> Document:
    """Returns a document without its padding and its first end."""
    shapes = {
      'input_ids': self.max_sequence_length,
      'input_mask': self.max_sequence_length,
      'masked_lm_positions': self.max_predictions_per_seq,
      'masked_lm_ids': self.max_predictions_per_seq,
      'masked_lm_weights': self.max_predictions_per_seq,
    }
    example = tf_records.parse_example(record, tuple(shapes))
    found = {name: len(example.get(name, ())) for name in shapes}
    if found != shapes:
      raise ValueError(
        f'a record of {self.name!r} must have as many values as {shapes}, got '
        f'{found}; set max_sequence_length and max_predictions_per_seq'
      )
    masked_ids = example['input_ids'].astype(np.int32)
    count = int(example['masked_lm_weights'].sum())
    where = example['masked_lm_positions'][:count]
    labels, masked_pos = (
      masked_ids.copy(),
      np.zeros(len(masked_ids), np.float32),
    )
    labels[where] = example['masked_lm_ids'][:count]
    masked_pos[where] = 1
    ends = np.flatnonzero(labels == self.eos_token_id)
    if not len(ends):
      raise ValueError(
        f'a document of {self.name!r} must have a token eos_token_id = '
        f'{self.eos_token_id}, got {labels[:20]}...; set eos_token_id'
      )
    keep = example['input_mask'].astype(bool)
    keep[ends[0]] = False
    return {
      'labels': labels[keep],
      'masked_ids': masked_ids[keep],
      'masked_pos': masked_pos[keep],
    }

  def _get_state_internal(self) -> base_input.State:
    if self.is_training:
      return self._blocks.state
    return {'batches': self._batches}

  def _set_state_internal(self, state: base_input.State) -> None:
    if self.is_training:
      self._blocks.state = state
    else:
      self._batches = int(state['batches'])


def _packed(documents: list[Document], length: int) -> list[list[Document]]:
  """Returns rows of documents that together fit into a length."""
  plan = packing.plan([len(d['labels']) for d in documents], length)
  ends = plan.row_starts
  return [
    [documents[i] for i in plan.documents[ends[row] : ends[row + 1]]]
    for row in range(plan.num_rows)
  ]


def _batch_of(
  rows: list[list[Document]], batch_size: int, length: int
) -> NestedMap:
  """Returns a batch whose first rows hold these documents, side by side."""
  shape = (batch_size, length)
  ints = ('labels', 'masked_ids', 'segment_ids', 'segment_pos')
  batch = NestedMap({name: np.zeros(shape, np.int32) for name in ints})
  batch.masked_pos = np.zeros(shape, np.float32)
  batch.paddings = np.ones(shape, np.float32)
  for b, row in enumerate(rows):
    at = 0
    for segment, document in enumerate(row, start=1):
      size = len(document['labels'])
      here = slice(at, at + size)
      for name, values in document.items():
        batch[name][b, here] = values
      batch.segment_ids[b, here] = segment
      batch.segment_pos[b, here] = np.arange(size)
      batch.paddings[b, here] = 0
      at += size
  return batch
