# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Files in the safetensors format."""

from __future__ import annotations

import json
import struct

import ml_dtypes
import numpy as np
import pytest

from pax.huggingface import safetensors

_BYTES_OF_X = bytes([0, 0, 128, 63, 0, 0, 0, 64])  # 1.0 and 2.0 in float32.


def _write(path, header, data=b''):
  text = header if isinstance(header, bytes) else json.dumps(header).encode()
  path.write_bytes(struct.pack('<Q', len(text)) + text + data)


def test_reads_a_file_by_hand(tmp_path):
  file = tmp_path / 'model.safetensors'
  header = {
    '__metadata__': {'format': 'pt'},
    'x': {'dtype': 'F32', 'shape': [2], 'data_offsets': [2, 10]},
    'b': {'dtype': 'BF16', 'shape': [], 'data_offsets': [0, 2]},
  }
  _write(file, header, bytes([0x80, 0x3F]) + _BYTES_OF_X)
  entries = safetensors.read_folder(tmp_path)
  assert list(entries) == ['x', 'b']
  np.testing.assert_array_equal(entries['x'].read(), [1.0, 2.0])
  np.testing.assert_array_equal(entries['x'].memory_map(), [1.0, 2.0])
  b = entries['b'].read()
  assert b.dtype == ml_dtypes.bfloat16 and b.shape == () and b == 1.0
  tensors, metadata = safetensors.header_tensors(safetensors.read_header(file))
  assert list(tensors) == ['b', 'x'] and metadata == {'format': 'pt'}


def test_writes_the_description_of_the_format(tmp_path):
  file = tmp_path / 'x.safetensors'
  array = np.array([1, 2], np.float32)
  header = safetensors.make_header(
    {'x': (array.shape, array.dtype)}, {'a': 'b'}
  )
  safetensors.write(file, header, [array])
  content = file.read_bytes()
  (size,) = struct.unpack('<Q', content[:8])
  assert size % 8 == 0 and json.loads(content[8 : 8 + size]) == {
    '__metadata__': {'a': 'b'},
    'x': {'dtype': 'F32', 'shape': [2], 'data_offsets': [0, 8]},
  }
  assert content[8 + size :] == _BYTES_OF_X


def test_large_transposed_tensors_are_written_in_parts(tmp_path, monkeypatch):
  monkeypatch.setattr(safetensors, '_BLOCK_BYTES', 64)
  arrays = {
    'matrix': np.arange(7 * 31, dtype=np.int32).reshape(7, 31).T,
    'heads': np.arange(3 * 5 * 40, dtype=np.int32).reshape(5, 3, 40)[:, ::-1],
    'empty': np.zeros((0, 4), np.int32),
    'scalar': np.array(3, np.int32),
  }
  file = tmp_path / 'x.safetensors'
  shapes = {name: (x.shape, x.dtype) for name, x in arrays.items()}
  header = safetensors.make_header(shapes)
  safetensors.write(file, header, arrays.values())
  entries = safetensors.read_entries(file)
  for name, array in arrays.items():
    np.testing.assert_array_equal(entries[name].read(), array)
    np.testing.assert_array_equal(entries[name].memory_map(), array)


def test_says_what_is_wrong_with_the_files(tmp_path):
  read = lambda: safetensors.read_folder(tmp_path)
  with pytest.raises(ValueError, match='must have .*safetensors, got none'):
    read()
  file = tmp_path / 'model.safetensors'
  entry = {'dtype': 'Q9', 'shape': [2], 'data_offsets': [0, 8]}
  _write(file, {'x': entry})
  with pytest.raises(ValueError, match=r"one of \['BF16', .*got Q9"):
    read()
  _write(file, {'x': {**entry, 'dtype': 'F16'}})
  with pytest.raises(
    ValueError, match='has 8 bytes, its shape and dtype need 4'
  ):
    read()
  _write(file, {'x': {**entry, 'dtype': 'F32'}}, b'1234')
  # Before a conversion has written anything.
  with pytest.raises(ValueError, match='truncated: x ends at byte .*, got'):
    read()
  for wrong in (
    {'dtype': ['F32']},
    {'shape': 2},
    {'shape': [-1, -2]},
    {'data_offsets': [8]},
    {'data_offsets': [-8, 0]},
    {'data_offsets': [0.0, 8.0]},
  ):
    _write(file, {'x': {**entry, 'dtype': 'F32', **wrong}}, b'12345678')
    with pytest.raises(ValueError, match=r'is damaged \(x must have a dtype'):
      read()
  _write(file, b'{"x": 3}')
  with pytest.raises(ValueError, match='is damaged'):
    read()
  _write(file, b'{"\xff": 3}')
  with pytest.raises(
    ValueError, match=r'model.safetensors is damaged \(.*utf-8'
  ):
    read()
  file.write_bytes(b'\xff' * 100)
  with pytest.raises(ValueError, match='complete header'):
    read()
