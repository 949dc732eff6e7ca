# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Records and examples as TensorFlow writes them, byte by byte."""

from __future__ import annotations

import io

import numpy as np
import pytest

from pax import tf_records


def test_crc32c_of_the_standard():
  # RFC 3720, B.4.
  assert tf_records.crc32c(b'123456789') == 0xE3069283
  assert tf_records.crc32c(bytes(32)) == 0x8A9136AA


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


def test_names_of_nested_outputs():
  tree = {'x': np.zeros(2), 'y': {'z': np.ones(1)}}
  assert set(tf_records.flat(tree)) == {'x', 'y/z'}
