# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Files of tokens: each format, and damaged files."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from pax.inputs.tokens import token_arrays

TOKENS = np.array([5, 6, 7, 8, 9, 65535], np.uint16)


def write_indexed(folder, name='x', documents=((5, 6, 7), (), (8, 9, 65535))):
  tokens = np.concatenate([np.asarray(d, np.uint16) for d in documents])
  tokens.tofile(folder / f'{name}.bin')
  lengths = [len(d) for d in documents]
  token_arrays.write_index(folder / f'{name}.idx', lengths, np.uint16)
  return folder / f'{name}.idx'


@pytest.mark.parametrize('dtype', ['uint8', 'uint16', 'int32', 'int64', '>i4'])
def test_npy(tmp_path, dtype):
  np.save(tmp_path / 'x.npy', np.arange(9).astype(dtype))
  array = token_arrays.open_array(tmp_path / 'x.npy')
  assert array.tokens.tolist() == list(range(9)) and array.starts is None


def test_bin_of_nanogpt(tmp_path):
  TOKENS.tofile(tmp_path / 'x.bin')
  assert token_arrays.open_array(tmp_path / 'x.bin').tokens.tolist() == list(
    TOKENS
  )


def test_bin_of_llm_c(tmp_path):
  header = struct.pack('<3i', 20240520, 1, len(TOKENS)).ljust(1024, b'\0')
  (tmp_path / 'x.bin').write_bytes(header + TOKENS.tobytes())
  assert token_arrays.open_array(tmp_path / 'x.bin').tokens.tolist() == list(
    TOKENS
  )
  (tmp_path / 'x.bin').write_bytes(header + TOKENS[:-1].tobytes())
  with pytest.raises(ValueError, match='must have the 6 tokens.*got 5'):
    token_arrays.open_array(tmp_path / 'x.bin')


def test_bin_of_llm_c_with_the_tokens_of_llama_3(tmp_path):
  tokens = TOKENS.astype('<u4') + 100_000
  header = struct.pack('<3i', 20240801, 7, len(tokens)).ljust(1024, b'\0')
  (tmp_path / 'x.bin').write_bytes(header + tokens.tobytes())
  array = token_arrays.open_array(tmp_path / 'x.bin')
  assert array.tokens.tolist() == tokens.tolist()


@pytest.mark.parametrize('suffix', ['.bin', '.idx'])
def test_indexed(tmp_path, suffix):
  path = write_indexed(tmp_path).with_suffix(suffix)
  array = token_arrays.open_array(path)
  assert array.tokens.tolist() == TOKENS.tolist()
  assert array.corpus.starts.tolist() == [0, 3, 3, 6]


def test_documents_of_several_sequences(tmp_path):
  # Written by hand after the format of Megatron-LM: 3 sequences, 2 documents.
  TOKENS.tofile(tmp_path / 'x.bin')
  (tmp_path / 'x.idx').write_bytes(
    b'MMIDIDX\x00\x00'
    + struct.pack('<QBQQ', 1, 8, 3, 3)
    + struct.pack('<3i', 1, 2, 3)
    + struct.pack('<3q', 0, 2, 6)
    + struct.pack('<3q', 0, 2, 3)
  )
  array = token_arrays.open_array(tmp_path / 'x.bin')
  assert array.corpus.starts.tolist() == [0, 3, 6]


def test_only_the_index_is_read(tmp_path):
  # 64 GiB that would not fit the memory; the file is sparse.
  with (tmp_path / 'x.bin').open('wb') as f:
    f.truncate(2**36)
  assert len(token_arrays.open_array(tmp_path / 'x.bin').tokens) == 2**35


def damaged(content: bytes):
  """Damaged copies of an index, with a part of the error."""
  yield b'', 'it has 0 bytes'
  yield content[:20], 'it has 20 bytes'
  yield content[:-1], 'bytes instead of'
  yield b'X' + content[1:], 'begins with'
  yield content[:9] + b'\x07' + content[10:], 'version 7'
  yield content[:17] + b'\x07' + content[18:], 'code of the dtype is 7'
  # Sizes beyond the file, whose product overflows 64 bits.
  yield content[:18] + b'\xff' * 16 + content[34:], 'bytes instead of'
  # Pointers and documents out of order.
  yield content[:46] + b'\x02' + content[47:], 'do not follow one another'
  yield content[:70] + b'\x02' + content[71:], 'do not cover'
  yield content[:34] + b'\xff' * 4 + content[38:], 'index of Megatron-LM'


@pytest.mark.parametrize('case', range(10))
def test_a_damaged_index(tmp_path, case):
  path = write_indexed(tmp_path)
  content, message = list(damaged(path.read_bytes()))[case]
  path.write_bytes(content)
  with pytest.raises(ValueError, match=f'x.idx must be.*{message}'):
    token_arrays.open_array(path)


def test_an_index_without_its_tokens(tmp_path):
  path = write_indexed(tmp_path)
  TOKENS[:-1].tofile(tmp_path / 'x.bin')
  with pytest.raises(ValueError, match='must have the 6 tokens.*got 5'):
    token_arrays.open_array(path)
  path.with_suffix('.bin').unlink()
  with pytest.raises(ValueError, match='x.bin.*does not exist'):
    token_arrays.open_array(path)


def test_other_files(tmp_path):
  (tmp_path / 'x.bin').write_bytes(b'123')
  with pytest.raises(ValueError, match='ids of 2 bytes.*got 3 bytes'):
    token_arrays.open_array(tmp_path / 'x.bin')
  (tmp_path / 'x.npy').write_bytes(b'123')
  with pytest.raises(ValueError, match='file of numpy.save'):
    token_arrays.open_array(tmp_path / 'x.npy')
  np.save(tmp_path / 'x.npy', np.zeros((2, 3)))
  with pytest.raises(ValueError, match=r'one-dim.*got float64\[2, 3\]'):
    token_arrays.open_array(tmp_path / 'x.npy')
  with pytest.raises(ValueError, match='y.idx does not exist'):
    token_arrays.open_array(tmp_path / 'y.idx')
  with pytest.raises(ValueError, match='y.bin.*does not exist'):
    token_arrays.open_array(tmp_path / 'y.bin')
