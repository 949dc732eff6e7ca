# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: deps=@pypi//grain
"""States of inputs are a few integers, at the first batch and at the 10^6th.

tests/pax/inputs has the states of `LanguageModelInput`, of every kind of file,
and of `SeqIOInput`.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from pax.inputs import grain_input
from pax.inputs.rows import indexed
from pax.inputs.text import packed_text, span_corruption, text_pairs
from pax.tasks.lm import bert_input, input_generator
from pax.tasks.test import synthetic
from pax.tasks.vision import input_generator as images
from pax.tasks.vision.params import mnist
from praxis import base_input
from praxis.base_input import data_fingerprints
from tests.pax.tasks.lm import bert_records
from tests.pax.tasks.vision import jpegs

# BERT's is the largest: epoch, file, record, records of the window, and row.
_MAX_INTEGERS = 5
_NUM_BATCHES = 7
_FAR_BATCH = 10**6
Fields = dict[str, Any]


def _text(folder: pathlib.Path) -> Fields:
  lines = [f'Line {i} of text.\n' for i in range(40)]
  (folder / 'text.txt').write_text(''.join(lines))
  return {'files': str(folder / 'text.txt'), 'held_out_percent': 0.0}


def _pairs(folder: pathlib.Path) -> Fields:
  lines = [json.dumps({'input': f'{i}', 'target': 'x'}) for i in range(9)]
  (folder / 'pairs.jsonl').write_text('\n'.join(lines))
  return {'files': str(folder / 'pairs.jsonl'), 'held_out_percent': 0.0}


def _lines(folder: pathlib.Path) -> Fields:
  return {'input_file': _text(folder)['files'], 'bytes_repr': False}


def _documents(folder: pathlib.Path) -> Fields:
  records = bert_records.counting(30, 16, seed=0)
  return {
    'input_file': bert_records.write(folder / 'records', records),
    'max_sequence_length': 16,
    'file_buffer_size': 8,
    'enable_packing': True,
    'prepacking_batch_size': 10,
  }


def _images(folder: pathlib.Path) -> Fields:
  jpegs.write(folder, 'train', 12)
  return {'data_dir': str(folder), 'data_shape': (8, 8, 3)}


def _numbers(folder: pathlib.Path) -> Fields:
  del folder
  return {'make_dataset': _make_numbers}


def _make_numbers(host_index: int, num_hosts: int, seed: int) -> Any:
  del host_index, num_hosts
  grain = pytest.importorskip('grain')
  numbers = [{'x': np.array(i)} for i in range(10)]
  return grain.MapDataset.source(numbers).shuffle(seed=seed)


def _no_files(folder: pathlib.Path) -> Fields:
  del folder
  return {}


CASES: dict[type[base_input.BaseInput], Callable[[pathlib.Path], Fields]] = {
  bert_input.TFRecordBertInput: _documents,
  grain_input.GrainInput: _numbers,
  images.ImageNetTrain: _images,
  images.SyntheticImages: _no_files,
  input_generator.SyntheticLmData: lambda folder: {'seq_len': 8},
  input_generator.TextInput: _lines,
  mnist.MnistDatasetInput: _no_files,
  span_corruption.SpanCorruptionInput: _text,
  synthetic.ClusteredPoints: _no_files,
  packed_text.TextLmInput: _text,
  text_pairs.TextPairInput: _pairs,
}


@pytest.mark.parametrize('cls', CASES, ids=lambda cls: cls.__name__)
def test_a_state_is_a_few_integers(cls, tmp_path):
  fields = {'batch_size': 3, 'is_training': True, **CASES[cls](tmp_path)}
  source = cls.config(**fields).Instantiate()
  structures = set()
  for _ in range(_NUM_BATCHES):
    structures.add(_structure(source))
    source.get_next()
  if isinstance(source, indexed.IndexedInput):
    source.seek(_FAR_BATCH)
    structures.add(_structure(source))
    source.get_next()
  assert len(structures) == 1


@pytest.mark.parametrize('cls', CASES, ids=lambda cls: cls.__name__)
def test_a_reset_forgets_the_peeked_batch(cls, tmp_path):
  fields = {'batch_size': 3, **CASES[cls](tmp_path), 'is_training': False}
  source = cls.config(**fields).Instantiate()
  first = _first_batches(source)
  source.reset()
  source.peek_padded()
  source.reset()
  second = _first_batches(source)
  jax.tree.map(np.testing.assert_array_equal, first, second)


def _first_batches(source: base_input.BaseInput) -> list[Any]:
  """Returns two batches, or one if the data end."""
  batches = []
  while len(batches) < 2 and source.peek_padded() is not None:
    batches.append(source.get_next_padded())
  return batches


def _structure(source: base_input.BaseInput) -> Any:
  """Checks the state of an input, and returns its tree without values."""
  position, _ = data_fingerprints.detach(source.get_state())
  values = jax.tree.leaves(json.loads(json.dumps(position)))
  assert len(values) <= _MAX_INTEGERS
  assert all(type(value) is int and 0 <= value < 1 << 63 for value in values)
  return jax.tree.structure(position)
