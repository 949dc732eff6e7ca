# SPDX-License-Identifier: Apache-2.0
"""Small data sets of every kind that an input of language models reads."""

# bazel: deps=@pypi//array_record,@pypi//google_crc32c,@pypi//grain
# bazel: deps=@pypi//pyarrow
from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pax.files import tf_records
from pax.inputs.records import text_records
from pax.inputs.tokens import token_arrays, tokenizers

_SEQ_LEN = 16
# File of the records that `grain_rows` reads.
GRAIN_RECORDS = 'PAX_TEST_GRAIN_RECORDS'


def write_jsonl(path: pathlib.Path, texts: Sequence[str]) -> None:
  lines = [json.dumps({'text': text, 'id': 1}) for text in texts]
  path.write_text('\n'.join(lines))


def write_parquet(path: pathlib.Path, texts: Sequence[str]) -> None:
  arrow = pytest.importorskip('pyarrow')
  parquet = pytest.importorskip('pyarrow.parquet')
  table = arrow.table({'id': range(len(texts)), 'text': texts})
  parquet.write_table(table, path, row_group_size=3, write_page_checksum=True)


def write_arrow(path: pathlib.Path, texts: Sequence[str]) -> None:
  """Writes a file as `datasets.Dataset.save_to_disk` does."""
  arrow = pytest.importorskip('pyarrow')
  table = arrow.table({'text': texts})
  with arrow.OSFile(str(path), 'wb') as f:
    with arrow.ipc.new_stream(f, table.schema) as writer:
      writer.write_table(table, max_chunksize=3)


def write_tfrecord(path: pathlib.Path, texts: Sequence[str]) -> None:
  with path.open('wb') as f:
    tf_records.write(f, [tf_records.example({'text': [t]}) for t in texts])


def write_array_record(path: pathlib.Path, texts: Sequence[str]) -> None:
  module = pytest.importorskip('array_record.python.array_record_module')
  writer = module.ArrayRecordWriter(str(path), 'group_size:1')
  for text in texts:
    writer.write(tf_records.example({'text': [text]}))
  writer.close()


# Writers of documents by the suffix of their files.
WRITERS: dict[str, Callable[[pathlib.Path, Sequence[str]], None]] = {
  'jsonl': write_jsonl,
  'parquet': write_parquet,
  'arrow': write_arrow,
  'tfrecord': write_tfrecord,
  'array_record': write_array_record,
}

# Kinds of data sets that `write` writes.
KINDS = (
  'npy',
  'bin',
  'megatron',
  'txt',
  *WRITERS,
  'saved_to_disk',
  'mixture',
)


def write(
  kind: str, folder: pathlib.Path
) -> str | list[str] | dict[str, float]:
  """Writes a data set of ids of bytes; returns `data` of its input."""
  rng = np.random.default_rng(0)
  texts = [
    ''.join(map(chr, rng.integers(97, 123, size)))
    for size in rng.integers(1, 60, 80)
  ]
  path = folder / f'{kind}.{kind}'
  if kind in WRITERS:
    # Two files, one of which is short.
    WRITERS[kind](folder / f'{kind}_1.{kind}', texts[:70])
    WRITERS[kind](folder / f'{kind}_2.{kind}', texts[70:])
    return str(folder / f'{kind}_*.{kind}')
  if kind == 'txt':
    for i, text in enumerate(texts):
      (folder / f'{i}.txt').write_text(text)
    return str(folder / '*.txt')
  if kind == 'npy':
    np.save(path, rng.integers(0, 256, 3000).astype(np.int32))
    return str(path)
  if kind == 'bin':
    rng.integers(0, 256, 3000).astype(np.uint16).tofile(path)
    return str(path)
  if kind == 'megatron':
    bos, eos = tokenizers.ByteTokenizer.bos_id, tokenizers.ByteTokenizer.eos_id
    documents = [[bos, *text.encode(), eos] for text in texts]
    return write_documents(folder / kind, documents)
  if kind == 'saved_to_disk':
    (folder / kind).mkdir()
    write_arrow(folder / kind / 'data-0.arrow', texts)
    state = {'_data_files': [{'filename': 'data-0.arrow'}]}
    (folder / kind / 'state.json').write_text(json.dumps(state))
    return str(folder / kind)
  assert kind == 'mixture', kind
  jsonl, npy = write('jsonl', folder), write('npy', folder)
  return {str(jsonl): 0.75, str(npy): 0.25}


def write_documents(
  path: pathlib.Path,
  documents: Sequence[Sequence[int]],
  tokenizer: dict[str, Any] | None = None,
) -> str:
  """Writes documents as .bin and .idx; returns the path of the tokens."""
  tokens = np.concatenate([np.asarray(d, np.uint16) for d in documents])
  tokens.tofile(path.with_suffix('.bin'))
  lengths = [len(document) for document in documents]
  token_arrays.write_index(path.with_suffix('.idx'), lengths, np.uint16)
  if tokenizer is not None:
    path.with_suffix('.json').write_text(json.dumps(tokenizer))
  return str(path.with_suffix('.bin'))


class _Rows:
  """A row of bytes of each record of an ArrayRecord file, for Grain."""

  def __init__(self, path: str):
    self._records = text_records.open_text(path)

  def __len__(self) -> int:
    return len(self._records)

  def __getitem__(self, index: int) -> dict[str, np.ndarray]:
    tokens = np.frombuffer(self._records.read(index)[: _SEQ_LEN + 1], np.uint8)
    labels = np.zeros(_SEQ_LEN, np.int32)
    ids, weights = labels.copy(), np.zeros(_SEQ_LEN, np.float32)
    size = len(tokens) - 1
    ids[:size], labels[:size], weights[:size] = tokens[:-1], tokens[1:], 1
    return {
      'ids': ids,
      'labels': labels,
      'weights': weights,
      'paddings': 1 - weights,
      'segment_ids': np.ones(_SEQ_LEN, np.int32),
      'segment_pos': np.arange(_SEQ_LEN, dtype=np.int32),
    }


def grain_rows(host_index: int, num_hosts: int, seed: int) -> Any:
  """Returns a data set of Grain of the records in $PAX_TEST_GRAIN_RECORDS."""
  del host_index, num_hosts
  import grain

  rows = _Rows(os.environ[GRAIN_RECORDS])
  return grain.MapDataset.source(rows).shuffle(seed=seed)
