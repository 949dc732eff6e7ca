# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Documents of each kind of file, and damaged files."""

from __future__ import annotations

import pickle

import pytest

from pax.files import tf_records
from pax.inputs.records import record_sources, text_records
from tests.testing import data_sets

TEXTS = ['one', 'zwei, drei', 'ünïcödé \n line', 'last']


def write(path):
  data_sets.WRITERS[path.suffix.removeprefix('.')](path, TEXTS)


@pytest.mark.parametrize('suffix', data_sets.WRITERS)
def test_documents(tmp_path, suffix):
  path = tmp_path / f'x.{suffix}'
  write(path)
  source = text_records.open_text(str(path))
  assert len(source) == len(TEXTS)
  for index in (3, 0, 2, 1, 3):
    assert source.read(index).decode() == TEXTS[index]
    assert str(path) in source.where(index)


@pytest.mark.parametrize('suffix', ['parquet', 'arrow', 'tfrecord'])
def test_another_field(tmp_path, suffix):
  write(path := tmp_path / f'x.{suffix}')
  with pytest.raises(ValueError, match="x.*must.*'body'"):
    text_records.open_text(str(path), 'body').read(0)


def test_records_without_a_field(tmp_path):
  with (tmp_path / 'x.tfrecord').open('wb') as f:
    tf_records.write(f, [b'plain', b'text'])
  source = text_records.open_text(str(tmp_path / 'x.tfrecord'), '')
  assert [source.read(i) for i in range(2)] == [b'plain', b'text']
  with pytest.raises(ValueError, match='names it, empty if records are'):
    text_records.open_text(str(tmp_path / 'x.tfrecord')).read(0)


def test_plain_text(tmp_path):
  (tmp_path / 'x.txt').write_bytes(b'abc\n' * (1 << 19))
  source = text_records.open_text(str(tmp_path / 'x.txt'))
  assert len(source) == 2
  assert source.read(0) + source.read(1) == b'abc\n' * (1 << 19)


def test_blank_lines_of_json_are_no_documents(tmp_path):
  lines = ['', '{"text": "a"}', '', ' \t', '  {"text": "b"}', '']
  path = tmp_path / 'x.jsonl'
  path.write_bytes('\r\n'.join(lines).encode())
  source = text_records.open_text(str(path))
  assert [source.read(i) for i in range(len(source))] == [b'a', b'b']
  assert source.where(1) == f'line 5 of {path}'


@pytest.mark.parametrize('suffix', ['jsonl', 'txt'])
def test_empty_files_have_no_documents(tmp_path, suffix):
  (tmp_path / f'x.{suffix}').touch()
  assert not len(text_records.open_text(str(tmp_path / f'x.{suffix}')))


@pytest.mark.parametrize(
  'line', ['{"text": 5}', '{"body": ""}', '[1]', '{"text', 'nul', '"text"']
)
def test_bad_lines_have_numbers(tmp_path, line):
  (tmp_path / 'x.jsonl').write_text(f'{{"text": "a"}}\r\n\n{line}\n')
  source = text_records.open_text(str(tmp_path / 'x.jsonl'))
  assert source.read(0) == b'a'
  with pytest.raises(
    record_sources.UnreadableRecordError, match=r'line 3 of .*x.jsonl must be'
  ):
    source.read(1)


def test_a_flipped_bit_of_a_tfrecord(tmp_path):
  write(tmp_path / 'x.tfrecord')
  content = bytearray((tmp_path / 'x.tfrecord').read_bytes())
  content[content.index(b'zwei')] ^= 1
  (tmp_path / 'x.tfrecord').write_bytes(content)
  source = text_records.open_text(str(tmp_path / 'x.tfrecord'))
  assert source.read(0) == b'one'
  with pytest.raises(
    record_sources.UnreadableRecordError, match='record 1 of .*x.tfrecord'
  ):
    source.read(1)


@pytest.mark.parametrize(
  ('suffix', 'place'), [('parquet', b'zwei'), ('array_record', b'zwei')]
)
def test_a_flipped_bit(tmp_path, suffix, place):
  write(path := tmp_path / f'x.{suffix}')
  content = bytearray(path.read_bytes())
  if place not in content:
    pytest.skip('the text is compressed')
  content[content.index(place)] ^= 1
  path.write_bytes(content)
  source = text_records.open_text(str(path))
  with pytest.raises(record_sources.UnreadableRecordError, match=f'x.{suffix}'):
    source.read(1)


def test_a_truncated_stream_of_arrow(tmp_path):
  pytest.importorskip('pyarrow')
  write(path := tmp_path / 'x.arrow')
  content = path.read_bytes()
  for size in (0, content.index(b'zwei'), content.index(b'zwei') // 2):
    path.write_bytes(content[:size])
    with pytest.raises(ValueError, match='x.arrow must be a complete Arrow'):
      text_records.open_text(str(path))


def test_a_parquet_file_with_a_damaged_end(tmp_path):
  pytest.importorskip('pyarrow')
  write(path := tmp_path / 'x.parquet')
  content = path.read_bytes()
  end = len(content) - 8
  size = int.from_bytes(content[end : end + 4], 'little')
  path.write_bytes(content[: end - size] + b'\xff' * size + content[end:])
  with pytest.raises(ValueError, match='x.parquet must be a Parquet file'):
    text_records.open_text(str(path))


def test_a_truncated_array_record(tmp_path):
  write(path := tmp_path / 'x.array_record')
  content = path.read_bytes()
  for size in (0, len(content) // 2, len(content) - 1):
    path.write_bytes(content[:size])
    with pytest.raises(ValueError, match=rf'x.array_record .* got {size} byt'):
      text_records.open_text(str(path))


@pytest.mark.parametrize(
  'suffix', ['parquet', 'arrow', 'tfrecord', 'array_record']
)
def test_a_file_of_another_kind(tmp_path, suffix):
  if suffix in ('parquet', 'arrow'):
    pytest.importorskip('pyarrow')
  if suffix == 'array_record':
    pytest.importorskip('array_record')
  (tmp_path / f'x.{suffix}').write_bytes(b'something else ' * 9)
  with pytest.raises(ValueError, match=f'x.{suffix}'):
    source = text_records.open_text(str(tmp_path / f'x.{suffix}'))
    source.read(0)


def test_other_suffixes_and_missing_files(tmp_path):
  with pytest.raises(ValueError, match='x.doc must be a file of .txt'):
    text_records.open_text('x.doc')
  with pytest.raises(ValueError, match='x.jsonl.*does not exist'):
    text_records.open_text(str(tmp_path / 'x.jsonl'))


def test_concatenation(tmp_path):
  for name in 'ab':
    write(tmp_path / f'{name}.jsonl')
  (tmp_path / 'empty.jsonl').touch()
  source = record_sources.Concatenation(
    [
      text_records.open_text(str(tmp_path / f'{name}.jsonl'))
      for name in ('a', 'empty', 'b')
    ]
  )
  assert [source.read(i).decode() for i in range(8)] == TEXTS * 2
  assert source.where(5) == f'line 2 of {tmp_path}/b.jsonl'
  for index in (-1, 8):
    with pytest.raises(IndexError, match='must be below 8'):
      source.read(index)


def test_array_records_are_pickled(tmp_path):
  write(tmp_path / 'x.array_record')
  source = text_records.ArrayRecords(str(tmp_path / 'x.array_record'))
  assert pickle.loads(pickle.dumps(source)).read(1) == source.read(1)
