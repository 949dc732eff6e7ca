# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Files, documents, and the machine-independent split."""

from __future__ import annotations

import pathlib
import sysconfig

import pytest

from pax.inputs.records import text_files


def test_the_default_corpus_is_the_library_without_its_tests():
  paths = text_files.expand(None)
  assert paths == text_files.expand(None)
  assert len(paths) > 300
  assert all(p.endswith('.py') for p in paths)
  root = sysconfig.get_paths()['stdlib']
  parts = [pathlib.Path(p).relative_to(root).parts for p in paths]
  assert ('argparse.py',) in parts
  assert not any({'test', 'tests', 'site-packages'} & set(p) for p in parts)


def test_globs_folders_and_commas(tmp_path):
  for name in ('b.txt', 'a.txt', 'c.md', 'deep/d.txt'):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(name)

  def names(patterns):
    found = text_files.expand(patterns)
    return [p.removeprefix(f'{tmp_path}/') for p in found]

  assert names(f'{tmp_path}/*.txt') == ['a.txt', 'b.txt']
  assert names([f'{tmp_path}/*.txt', f'{tmp_path}/a*']) == ['a.txt', 'b.txt']
  assert names(f'{tmp_path}/c.md,{tmp_path}/a.txt') == ['a.txt', 'c.md']
  assert names(str(tmp_path)) == ['a.txt', 'b.txt', 'c.md', 'deep/d.txt']
  with pytest.raises(ValueError, match=r'no file matches .*\.csv'):
    text_files.expand(f'{tmp_path}/*.csv')


def test_names_that_exist_are_no_globs(tmp_path):
  folder = tmp_path / 'v[1]'
  folder.mkdir()
  (folder / 'a[0].txt').touch()
  names = (f'{folder}/a[0].txt',)
  assert text_files.expand(str(folder)) == names
  assert text_files.expand(names[0]) == names


def test_long_files_are_cut_at_ends_of_lines(tmp_path, monkeypatch):
  monkeypatch.setattr(text_files, 'MAX_DOCUMENT_BYTES', 10)
  content = b'abc\ndefg\nhi\n' + b'x' * 25 + b'\nend'
  path = tmp_path / 'long'
  path.write_bytes(content)
  pieces = list(text_files.documents([path]))
  assert b''.join(pieces) == content
  assert pieces[:2] == [b'abc\ndefg\n', b'hi\n']
  assert max(map(len, pieces)) <= 10


def test_an_empty_file_is_no_document(tmp_path):
  (tmp_path / 'empty').touch()
  assert list(text_files.documents([tmp_path / 'empty'])) == []


def test_the_split_depends_on_content_alone():
  texts = [f'document {i}'.encode() for i in range(4000)]
  held_out = [t for t in texts if text_files.is_held_out(t, 10)]
  assert 300 < len(held_out) < 500
  # Recorded once: a change would let trained text into evaluations.
  assert [int(t.split()[1]) for t in held_out[:5]] == [9, 11, 20, 47, 67]
  assert all(text_files.is_held_out(t, 20) for t in held_out)
  assert not any(text_files.is_held_out(t, 0) for t in texts)
  assert all(text_files.is_held_out(t, 100) for t in texts)
  with pytest.raises(ValueError, match='percent'):
    text_files.is_held_out(b'', 101)


def test_each_line_of_a_json_file_has_a_text(tmp_path):
  path = tmp_path / 'texts.jsonl'

  def texts():
    return [
      text_files.json_text(place, value, ('prompt', 'text'))
      for place, value in text_files.json_lines(str(path))
    ]

  path.write_text(
    '{"text": "a\\nb"}\n\n"c"\n{"text": "", "prompt": "\u00e9"}\n'
  )
  assert texts() == ['a\nb', 'c', 'é']
  path.write_text('"a"\n{"body": "b"}\n')
  with pytest.raises(
    ValueError, match=r'texts.jsonl:2 must be .* prompt or text, got'
  ):
    texts()
  path.write_text('"a"\n"b\n')
  with pytest.raises(ValueError, match=r'texts.jsonl:2 must be JSON'):
    texts()
