# SPDX-License-Identifier: Apache-2.0
"""Files of token ids, memory-mapped: .npy, .bin, and .bin with .idx.

- `x.npy`: a one-dimensional array of integers.
- `x.bin`: 16-bit ids without a header (nanoGPT), or with the header of llm.c.
- `x.bin` and `x.idx`: the indexed data sets of Megatron-LM, with documents.
  `pax prepare` writes them, and `x.json` with the tokenizer.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import struct
from typing import Any

import numpy as np
from numpy import typing as npt

from pax.files import atomic_file
from pax.inputs.tokens import token_corpus
from praxis import base_input

SUFFIXES = ('.npy', '.bin', '.idx')

_INDEX_MAGIC = b'MMIDIDX\x00\x00'
_INDEX_HEADER = struct.Struct('<9sQBQQ')
_INDEX_VERSION = 1
# Codes of dtypes in an index.
_DTYPES: dict[int, type[np.integer]] = {
  1: np.uint8,
  2: np.int8,
  3: np.int16,
  4: np.int32,
  5: np.int64,
  8: np.uint16,
}
# llm.c: 256 integers of 32 bits; the first three are magic, version and number
# of tokens. The magic tells the tokenizer, GPT-2 or Llama 3.
_LLM_C_DTYPES: dict[int, type[np.integer]] = {
  20240520: np.uint16,
  20240801: np.uint32,
}
_LLM_C_HEADER_BYTES = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenArray:
  """The tokens of a file, and where its documents start."""

  # File of the tokens.
  path: str
  # One-dimensional, memory-mapped.
  tokens: np.ndarray
  # Start of each document, and the end of the last; None: not recorded.
  starts: np.ndarray | None = None
  # The tokenizer that made the tokens; None: not recorded.
  vocabulary: base_input.Vocabulary | None = None
  # Number of ids of the tokenizer, and its last id of a document.
  vocab_size: int | None = None
  eos_id: int | None = None

  @property
  def corpus(self) -> token_corpus.Corpus:
    """The documents.

    Raises:
      ValueError: The file does not record where documents start.
    """
    if self.starts is None:
      raise ValueError(
        f'{self.path} must record where documents start to pack them; set'
        ' DATA_LAYOUT=contiguous, or write it with `pax prepare`'
      )
    return token_corpus.Corpus(tokens=self.tokens, starts=self.starts)


def open_array(path: str | os.PathLike[str]) -> TokenArray:
  """Opens a file of tokens; only its index is read.

  Raises:
    ValueError: The file is missing, empty, truncated or in another format.
  """
  path = pathlib.Path(path)
  if path.suffix == '.npy':
    return TokenArray(path=str(path), tokens=_open_npy(path))
  tokens_path = path.with_suffix('.bin')
  index_path = path.with_suffix('.idx')
  if index_path.exists():
    dtype, starts = _read_index(index_path)
    tokens = _map_file(tokens_path, dtype, 0)
    if len(tokens) != starts[-1]:
      raise ValueError(
        f'{tokens_path} must have the {starts[-1]} tokens of {index_path.name},'
        f' got {len(tokens)}; write both files again'
      )
    return TokenArray(
      path=str(tokens_path),
      tokens=tokens,
      starts=starts,
      **_read_tokenizer(path.with_suffix('.json')),
    )
  if path.suffix == '.idx':
    raise ValueError(f'{path} does not exist; it is the index of {tokens_path}')
  return TokenArray(path=str(path), tokens=_open_bin(path))


def write_index(
  path: str | os.PathLike[str], lengths: np.ndarray, dtype: npt.DTypeLike
) -> None:
  """Writes the index of documents of `lengths` tokens."""
  starts = np.cumsum(lengths, dtype=np.int64) - lengths
  code = {np.dtype(t): code for code, t in _DTYPES.items()}[np.dtype(dtype)]
  count = len(lengths)
  with atomic_file.open_atomic(path) as f:
    f.write(
      _INDEX_HEADER.pack(_INDEX_MAGIC, _INDEX_VERSION, code, count, count + 1)
    )
    f.write(np.asarray(lengths, '<i4').tobytes())
    f.write((starts * np.dtype(dtype).itemsize).astype('<i8').tobytes())
    f.write(np.arange(len(lengths) + 1, dtype='<i8').tobytes())


def _open_npy(path: pathlib.Path) -> np.ndarray:
  _check_exists(path)
  try:
    tokens = np.asarray(np.load(path, mmap_mode='r'))
  except (EOFError, ValueError) as e:
    raise ValueError(f'{path} must be a file of numpy.save: {e}') from e
  if tokens.ndim != 1 or tokens.dtype.kind not in 'iu':
    raise ValueError(
      f'{path} must be a one-dimensional array of integers, got'
      f' {tokens.dtype}{list(tokens.shape)}'
    )
  return tokens


def _open_bin(path: pathlib.Path) -> np.ndarray:
  _check_exists(path)
  with path.open('rb') as f:
    header = f.read(12)
  magic, _, num_tokens = struct.unpack('<3i', header.ljust(12, b'\0'))
  if magic not in _LLM_C_DTYPES:
    return _map_file(path, np.uint16, 0)
  tokens = _map_file(path, _LLM_C_DTYPES[magic], _LLM_C_HEADER_BYTES)
  if len(tokens) != num_tokens:
    raise ValueError(
      f'{path} must have the {num_tokens} tokens of its header, got'
      f' {len(tokens)}; write it again'
    )
  return tokens


def _map_file(
  path: pathlib.Path, dtype: type[np.integer], offset: int
) -> np.ndarray:
  _check_exists(path)
  num_bytes = path.stat().st_size - offset
  stored = np.dtype(dtype).newbyteorder('<')
  if num_bytes < 0 or num_bytes % stored.itemsize:
    raise ValueError(
      f'{path} must hold ids of {stored.itemsize} bytes after {offset} bytes,'
      f' got {path.stat().st_size} bytes; it is truncated or another file'
    )
  if not num_bytes:
    return np.zeros(0, stored)
  return np.asarray(np.memmap(path, stored, 'r', offset))


def _read_index(
  path: pathlib.Path,
) -> tuple[type[np.integer], np.ndarray]:
  """Returns the dtype of the tokens, and the starts of the documents."""
  content = _map_file(path, np.uint8, 0)
  if len(content) < _INDEX_HEADER.size:
    raise _index_error(path, f'it has {len(content)} bytes')
  magic, version, code, num_sequences, num_documents = _INDEX_HEADER.unpack(
    content[: _INDEX_HEADER.size].tobytes()
  )
  if magic != _INDEX_MAGIC or version != _INDEX_VERSION:
    raise _index_error(path, f'it begins with {magic!r}, version {version}')
  if code not in _DTYPES:
    raise _index_error(path, f'the code of the dtype is {code}')
  size = _INDEX_HEADER.size + 12 * num_sequences + 8 * num_documents
  if len(content) < size or not num_documents:
    raise _index_error(path, f'it has {len(content)} bytes instead of {size}')
  parts = np.cumsum([_INDEX_HEADER.size, 4 * num_sequences, 8 * num_sequences])
  lengths = content[parts[0] : parts[1]].view('<i4')
  pointers = content[parts[1] : parts[2]].view('<i8')
  documents = content[parts[2] : size].view('<i8')
  ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
  if (pointers != ends[:-1] * np.dtype(_DTYPES[code]).itemsize).any():
    raise _index_error(path, 'the sequences do not follow one another')
  is_sorted = (np.diff(documents) >= 0).all()
  if not is_sorted or documents[0] or documents[-1] != num_sequences:
    raise _index_error(path, 'the documents do not cover the sequences')
  if lengths.size and lengths.min() < 0:
    raise _index_error(path, f'a sequence has {lengths.min()} tokens')
  return _DTYPES[code], ends[documents]


def _index_error(path: pathlib.Path, reason: str) -> ValueError:
  return ValueError(
    f'{path} must be a complete index of Megatron-LM: {reason}; write it again'
  )


def _read_tokenizer(path: pathlib.Path) -> dict[str, Any]:
  """Returns the fields of TokenArray that `pax prepare` records."""
  if not path.exists():
    return {}
  try:
    record = json.loads(path.read_text())
    vocabulary = record['vocabulary']
    if vocabulary is not None:
      vocabulary = base_input.Vocabulary(*vocabulary)
    return {
      'vocabulary': vocabulary,
      'vocab_size': record['vocab_size'],
      'eos_id': record['eos_id'],
    }
  except (ValueError, KeyError, TypeError) as e:
    raise ValueError(
      f'{path} must be the record that pax prepare writes, got a damaged one'
      f' ({e!r}); prepare the tokens again'
    ) from e


def _check_exists(path: pathlib.Path) -> None:
  if not path.is_file():
    raise ValueError(f'{path} must be a file of tokens, but does not exist')
