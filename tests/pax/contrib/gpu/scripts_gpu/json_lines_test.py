# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Readers of the Pile and LAMBADA; tests/compare prepares them with TFDS."""

from __future__ import annotations

import io
import json
import sys
import types

import pytest

from pax.contrib.gpu.scripts_gpu import (
  json_lines,
  tfds_lambada,
  tfds_pile,
)


def _write(path, *items):
  path.write_text('\n'.join(json.dumps({'text': item}) for item in items))
  return str(path)


def test_documents(tmp_path):
  first = _write(tmp_path / 'a.jsonl', 'x', ['y', 'z'])
  second = tmp_path / 'b.jsonl'
  second.write_text('no json\n\n')
  reader = tfds_pile.PileReader([first, str(second)], para_joiner='|')
  assert [e['text'] for e in reader] == ['x', 'y|z', 'no json\n']
  assert len(list(tfds_pile.PileReader(first))) == 2
  assert len(list(tfds_pile.PileReader((first, second)))) == 3


def test_last_words(tmp_path):
  path = _write(tmp_path / 'a.jsonl', 'he said “go” now', 'a b')
  assert list(tfds_lambada.LambadaReader(path)) == [
    {'text': 'he said "go"', 'target': ' now'},
    {'text': 'a', 'target': ' b'},
  ]


def test_compressed_files(tmp_path, monkeypatch):
  path = _write(tmp_path / 'a.jsonl.zst', 'x')
  decompressor = types.SimpleNamespace(
    stream_reader=lambda file: io.BytesIO(file.read())
  )
  zstandard = types.SimpleNamespace(ZstdDecompressor=lambda: decompressor)
  monkeypatch.setitem(sys.modules, 'zstandard', zstandard)
  assert list(tfds_pile.PileReader(path)) == [{'text': 'x'}]
  monkeypatch.setitem(sys.modules, 'zstandard', None)
  with pytest.raises(ValueError, match='needs the package zstandard'):
    list(tfds_pile.PileReader(path))


def test_lines_that_are_not_json():
  assert json_lines.json_parser('{"a": 1}') == {'a': 1}
  assert json_lines.json_parser('{"a"') == '{"a"'


def test_builders_need_tfds(monkeypatch):
  monkeypatch.setitem(sys.modules, 'tensorflow_datasets', None)
  assert json_lines.define_builder(None, 'module') == {}
