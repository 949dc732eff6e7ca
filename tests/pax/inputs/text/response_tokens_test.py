# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The cache of tokenized responses."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from pax.inputs.text import preferences, responses
from pax.inputs.tokens import tokenizers

_LINES = [
  {'prompt': 'ab', 'completion': 'xyz', 'chosen': 'p', 'rejected': 'qr'},
  {'prompt': 'c', 'completion': 'u', 'chosen': 'st', 'rejected': 'v'},
]
_CLASSES = [responses.ResponseInput, preferences.PreferenceInput]


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  return tmp_path / 'cache/pax'


@pytest.fixture
def encoded(monkeypatch):
  """The texts that are tokenized."""
  texts = []
  encode = tokenizers.ByteTokenizer.encode

  def recorded(self, document):
    texts.append(document)
    return encode(self, document)

  monkeypatch.setattr(tokenizers.ByteTokenizer, 'encode', recorded)
  return texts


def _write(tmp_path, lines):
  (tmp_path / 'lines.jsonl').write_text('\n'.join(map(json.dumps, lines)))


def _batch(cls, tmp_path, **fields):
  made = cls.config(
    files=str(tmp_path / 'lines.jsonl'),
    batch_size=2,
    seq_len=8,
    held_out_percent=0.0,
  ).set(**fields)
  return made.Instantiate().get_next()


def _assert_equal(batch, other):
  assert batch.keys() == other.keys()
  for name, array in batch.items():
    np.testing.assert_array_equal(array, other[name], err_msg=name)


@pytest.mark.parametrize('cls', _CLASSES)
def test_a_restart_reads_the_cache(cls, tmp_path, encoded):
  _write(tmp_path, _LINES)
  batch = _batch(cls, tmp_path)
  assert encoded
  encoded.clear()
  _assert_equal(batch, _batch(cls, tmp_path))
  assert not encoded


@pytest.mark.parametrize('cls', _CLASSES)
def test_other_files_and_settings_are_tokenized(cls, tmp_path, encoded):
  _write(tmp_path, _LINES)
  first = _batch(cls, tmp_path)
  encoded.clear()
  _batch(cls, tmp_path, seq_len=7)
  assert encoded
  encoded.clear()
  encoded.clear()
  # A change that samples of the content may miss.
  os.utime(tmp_path / 'lines.jsonl', (2, 2))
  _batch(cls, tmp_path)
  assert encoded
  encoded.clear()
  _batch(cls, tmp_path, input_random_seed=3)
  assert not encoded
  # As long as before, at another time.
  _write(tmp_path, [{**_LINES[0], 'prompt': 'zz'}, _LINES[1]])
  os.utime(tmp_path / 'lines.jsonl', (1, 1))
  changed = _batch(cls, tmp_path)
  assert encoded
  assert any(not np.array_equal(first[k], changed[k]) for k in first)


def test_the_sides_of_the_split_differ(tmp_path, encoded):
  _write(tmp_path, [{**_LINES[0], 'prompt': str(i)} for i in range(40)])
  halves = [
    _batch(responses.ResponseInput, tmp_path, held_out_percent=50.0, held_out=x)
    for x in (False, True, False, True)
  ]
  _assert_equal(halves[0], halves[2])
  _assert_equal(halves[1], halves[3])
  assert not np.array_equal(halves[0].ids, halves[1].ids)


def test_a_damaged_file_is_written_again(
  tmp_path, cache_folder, encoded, caplog
):
  _write(tmp_path, _LINES)
  batch = _batch(responses.ResponseInput, tmp_path)
  [file] = cache_folder.glob('responses_*.npz')
  content = file.read_bytes()
  file.write_bytes(content[: len(content) // 2])
  encoded.clear()
  _assert_equal(batch, _batch(responses.ResponseInput, tmp_path))
  assert encoded
  assert 'is damaged' in caplog.text
  assert file.read_bytes() == content


class _OwnInput(responses.ResponseInput):
  """Its tokens may be others after a change of this file."""


def test_classes_of_users_are_not_cached(tmp_path, cache_folder, encoded):
  _write(tmp_path, _LINES)
  _batch(_OwnInput, tmp_path)
  encoded.clear()
  _batch(_OwnInput, tmp_path)
  assert encoded
  assert not list(cache_folder.glob('responses_*'))


def test_a_cache_that_cannot_be_written_is_a_warning(
  tmp_path, monkeypatch, caplog
):
  _write(tmp_path, _LINES)
  (tmp_path / 'file').write_text('')
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
  batch = _batch(responses.ResponseInput, tmp_path)
  assert batch.weights.any()
  assert 'are not cached' in caplog.text
