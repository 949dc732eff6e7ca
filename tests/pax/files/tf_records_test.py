# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Records and examples as TensorFlow writes them, byte by byte."""

from __future__ import annotations

import io

import jax.numpy as jnp
import numpy as np
import pytest

from pax.files import tf_records


def test_the_checksum_of_a_record():
  # The CRC-32C of RFC 3720, B.4 is 0xE3069283; rotated, with the offset:
  assert tf_records.is_intact(b'123456789', (0xC78AB0E5).to_bytes(4, 'little'))
  assert not tf_records.is_intact(
    b'123456788', (0xC78AB0E5).to_bytes(4, 'little')
  )


def test_a_record_is_framed_and_read_again():
  file = io.BytesIO()
  tf_records.write(file, [b'abc'])
  assert len(file.getvalue()) == 8 + 4 + 3 + 4
  assert file.getvalue()[:8] == b'\x03' + bytes(7)
  file.seek(0)
  assert list(tf_records.read(file)) == [b'abc']


def test_damage_is_seen():
  file = io.BytesIO()
  tf_records.write(file, [b'abc'])
  broken = file.getvalue().replace(b'abc', b'abd')
  with pytest.raises(ValueError, match='damaged'):
    list(tf_records.read(io.BytesIO(broken)))
  with pytest.raises(ValueError, match='damaged'):
    list(tf_records.read(io.BytesIO(file.getvalue()[:-1])))


@pytest.mark.parametrize('byte', [4, 7])
def test_a_damaged_length_is_not_read(tmp_path, byte):
  with (tmp_path / 'x').open('wb') as file:
    tf_records.write(file, [b'abc', b'de'])
  content = bytearray((tmp_path / 'x').read_bytes())
  content[16 + 3 + byte] ^= 0xFF
  (tmp_path / 'x').write_bytes(content)
  with (tmp_path / 'x').open('rb') as file:
    records = tf_records.read(file)
    assert next(records) == b'abc'
    with pytest.raises(ValueError, match='record at byte 19 is damaged'):
      next(records)


def test_an_example_field_by_field():
  found = tf_records.example({'b': np.int64([1, -1]), 'a': np.float32(1.0)})
  # Example.features, then map entries of name and Feature, sorted by name.
  a = b'\x0a\x01a' + b'\x12\x08' + b'\x12\x06' + b'\x0a\x04\x00\x00\x80\x3f'
  minus_one = b'\xff' * 9 + b'\x01'
  b = b'\x0a\x01b' + b'\x12\x0f' + b'\x1a\x0d' + b'\x0a\x0b\x01' + minus_one
  entries = b'\x0a\x0d' + a + b'\x0a\x14' + b
  assert found == b'\x0a' + bytes([len(entries)]) + entries


def test_texts():
  found = tf_records.example({'t': np.array(['hi', 'you'])})
  assert b'\x0a\x02hi\x0a\x03you' in found


@pytest.mark.parametrize('texts', [b'a\x00', [b'a\x00', b'\x00'], ['b\x00']])
def test_texts_keep_the_nuls_at_their_end(texts):
  record = tf_records.example({'t': texts})
  listed = texts if isinstance(texts, list) else [texts]
  wanted = [t.encode() if isinstance(t, str) else t for t in listed]
  assert tf_records.parse_example(record)['t'] == wanted


@pytest.mark.parametrize(
  'value',
  [
    np.array([1j]),
    np.array([1, 2], object),
    None,
    [b'a', None],
    np.uint64([1, 2**63]),
    np.array(['2026-01-01'], 'M8[D]'),
  ],
)
def test_values_that_an_example_cannot_have(value):
  with pytest.raises(ValueError, match="feature 'x' .* must have floats"):
    tf_records.example({'x': value})


def test_small_types():
  record = tf_records.example(
    {
      'x': jnp.bfloat16([1.5]),
      'y': [True, False],
      'z': np.array([-3], jnp.int4),
    }
  )
  found = tf_records.parse_example(record)
  assert found['x'] == [1.5] and found['y'].tolist() == [1, 0]
  assert found['z'].dtype == np.int64 and found['z'] == [-3]


def test_names_of_nested_outputs():
  tree = {'x': np.zeros(2), 'y': {'z': np.ones(1)}}
  assert set(tf_records.flat(tree)) == {'x', 'y/z'}


def test_an_example_is_read_again():
  wanted = {
    'bytes': [b'', b'\x00\xff'],
    'floats': np.float32([1.5, -2.0]),
    'ints': np.int64([0, 1, -1, 127, 128, 2**40, -(2**63), 2**63 - 1]),
  }
  record = tf_records.example(
    wanted | {'bytes': np.array(wanted['bytes'], 'O')}
  )
  found = tf_records.parse_example(record)
  assert found.pop('bytes') == wanted.pop('bytes')
  for name, value in wanted.items():
    assert found[name].dtype == value.dtype
    np.testing.assert_array_equal(found[name], value)
  assert list(found) == ['floats', 'ints']
  assert list(tf_records.parse_example(record, ['ints', 'x'])) == ['ints']
  empty = tf_records.example({'ints': np.int64([])})
  assert tf_records.parse_example(empty)['ints'].size == 0


def test_an_example_of_another_writer():
  # Numbers one by one instead of packed, and a feature without a value.
  numbers = b'\x1a\x05' + b'\x08\x03' + b'\x08\x80\x01'
  floats = b'\x12\x05' + b'\x0d\x00\x00\x80\x3f'
  a = b'\x0a\x01a' + b'\x12\x07' + numbers
  b = b'\x0a\x01b' + b'\x12\x07' + floats
  empty = b'\x0a\x01c' + b'\x12\x00'
  entries = b''.join(b'\x0a' + bytes([len(e)]) + e for e in (a, b, empty))
  record = b'\x0a' + bytes([len(entries)]) + entries
  found = tf_records.parse_example(record)
  np.testing.assert_array_equal(found['a'], [3, 128])
  np.testing.assert_array_equal(found['b'], [1.0])
  assert found['c'] == []


@pytest.mark.parametrize('record', [b'jpeg', b'\x0a\x05ab', b'\x0a'])
def test_what_is_no_example_is_refused(record):
  with pytest.raises(ValueError, match='tf.train.Example'):
    tf_records.parse_example(record)


def test_where_records_are():
  file = io.BytesIO()
  tf_records.write(file, [b'abc', b'', b'de'])
  found = tf_records.offsets(file)
  data = file.getvalue()
  assert [data[a : a + n] for a, n in found] == [b'abc', b'', b'de']
  assert tf_records.offsets(io.BytesIO()).shape == (0, 2)
  with pytest.raises(ValueError, match='byte 35 '):
    tf_records.offsets(io.BytesIO(data[:-1]))
  with pytest.raises(ValueError, match='byte 0 '):
    tf_records.offsets(io.BytesIO(b'\x03' + bytes(40)))
