# SPDX-License-Identifier: Apache-2.0
"""Files of tensors in the safetensors format.

A file has the size of its header as a little-endian uint64, the header as JSON,
and the tensors. The header has dtype, shape and position of each tensor by
name.

The package safetensors (0.8) is not used: it copies tensors instead of mapping
them, reads no float8 into numpy, gives neither headers nor positions, which
exact copies of files need, and writes only tensors that are all in memory.

References: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import pathlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from pax.files import atomic_file

# The files of a model: one, or several and which has each tensor.
SINGLE_FILE = 'model.safetensors'
INDEX_FILE = 'model.safetensors.index.json'

_METADATA = '__metadata__'
_DTYPES = {
  'F64': np.dtype(np.float64),
  'F32': np.dtype(np.float32),
  'F16': np.dtype(np.float16),
  'BF16': np.dtype(ml_dtypes.bfloat16),
  'F8_E4M3': np.dtype(ml_dtypes.float8_e4m3fn),
  'F8_E5M2': np.dtype(ml_dtypes.float8_e5m2),
  'I64': np.dtype(np.int64),
  'I32': np.dtype(np.int32),
  'I16': np.dtype(np.int16),
  'I8': np.dtype(np.int8),
  'U8': np.dtype(np.uint8),
  'BOOL': np.dtype(np.bool_),
}
_DTYPE_NAMES = {dtype.name: name for name, dtype in _DTYPES.items()}
# The format limits the header to 100 MB.
_MAX_HEADER_BYTES = 100_000_000
# Bytes that are copied at once when a tensor is transposed.
_BLOCK_BYTES = 16 * 2**20
# The header is padded by spaces to a multiple of this.
_ALIGNMENT = 8


@dataclasses.dataclass(frozen=True)
class TensorEntry:
  """Position, shape and dtype of a tensor in a file."""

  file: pathlib.Path
  # Offset of its first byte in the file.
  offset: int
  shape: tuple[int, ...]
  dtype: np.dtype

  @property
  def num_bytes(self) -> int:
    """Size in the file."""
    return math.prod(self.shape) * self.dtype.itemsize

  def read(self) -> np.ndarray:
    """Returns the tensor."""
    data = np.fromfile(self.file, np.uint8, self.num_bytes, offset=self.offset)
    return data.view(self.dtype).reshape(self.shape)

  def memory_map(self) -> np.ndarray:
    """Returns the tensor as a read-only view of the file."""
    if not self.num_bytes:
      return np.zeros(self.shape, self.dtype)
    return np.memmap(self.file, self.dtype, 'r', self.offset, self.shape)


def read_header(file: pathlib.Path) -> str:
  """Returns the header of a file, as JSON with its padding.

  Raises:
    ValueError: The file is none of safetensors.
  """
  with file.open('rb') as f:
    size_bytes = f.read(8)
    size = struct.unpack('<Q', size_bytes)[0] if len(size_bytes) == 8 else 0
    header = f.read(size) if 2 <= size <= _MAX_HEADER_BYTES else b''
  if not header or len(header) < size:
    raise ValueError(
      f'{file} must be a safetensors file, got one without a complete header;'
      ' copy it again'
    )
  try:
    return header.decode()
  except UnicodeDecodeError as e:
    raise _damaged_header(file, e) from e


def read_entries(file: pathlib.Path) -> dict[str, TensorEntry]:
  """Returns the tensors of a file by name, in the order of the header.

  Raises:
    ValueError: The header is damaged, the file ends before a tensor, or a dtype
      is not supported.
  """
  header = read_header(file)
  start = 8 + len(header.encode())
  size = file.stat().st_size
  entries = {}
  for name, entry in _parse(header, file).items():
    dtype = _DTYPES.get(entry['dtype'])
    if dtype is None:
      raise ValueError(
        f'the dtype of {name} in {file} must be one of {sorted(_DTYPES)}, got'
        f' {entry["dtype"]}; convert the tensor'
      )
    first, end = entry['data_offsets']
    tensor = TensorEntry(file, start + first, tuple(entry['shape']), dtype)
    if end - first != tensor.num_bytes:
      raise ValueError(
        f'{name} in {file} has {end - first} bytes, its shape and dtype need'
        f' {tensor.num_bytes}; the file is damaged, copy it again'
      )
    if start + end > size:
      raise ValueError(
        f'{file} is truncated: {name} ends at byte {start + end}, got {size}'
        ' bytes; copy the file again'
      )
    entries[name] = tensor
  return entries


def weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files with the weights of a folder, those of transformers.

  They are model.safetensors, or else the files of the index. Other files, such
  as consolidated.safetensors of Mistral's releases or those of adapters, have
  other tensors. All files count where the folder has neither.

  Raises:
    ValueError: There are none, or one of the index is missing.
  """
  single, index = folder / SINGLE_FILE, folder / INDEX_FILE
  if single.exists():
    return [single]
  files = sorted(folder.glob('*.safetensors'))
  if files and index.exists():
    files = _files_of_index(index)
  if not files:
    raise ValueError(
      f'the folder {folder} must have *.safetensors, got none; save the model'
      ' with save_pretrained(folder)'
    )
  return files


def _files_of_index(index: pathlib.Path) -> list[pathlib.Path]:
  try:
    names = set(json.loads(index.read_text())['weight_map'].values())
    files = [index.parent / pathlib.Path(name).name for name in sorted(names)]
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    raise ValueError(
      f'{index} must have a file by tensor in weight_map, got an error ({e!r});'
      ' copy it again'
    ) from e
  if missing := [file.name for file in files if not file.exists()]:
    raise ValueError(
      f'{index.parent} must have all {len(files)} files of {index.name},'
      f' {len(missing)} are missing, such as {missing[0]}; copy them, too'
    )
  return files


def read_folder(folder: pathlib.Path) -> dict[str, TensorEntry]:
  """Returns the tensors of a model by name, in the order of its files.

  Raises:
    ValueError: The folder has no such files, or one is missing or damaged.
  """
  return {
    name: entry
    for file in weight_files(folder)
    for name, entry in read_entries(file).items()
  }


def make_header(
  tensors: Mapping[str, tuple[tuple[int, ...], np.dtype]],
  metadata: Mapping[str, str] | None = None,
) -> str:
  """Returns the header of a file with these tensors, in their order.

  Args:
    tensors: Shape and dtype by name.
    metadata: Free text by key.
  """
  header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
  end = 0
  for name, (shape, dtype) in tensors.items():
    first, end = end, end + math.prod(shape) * dtype.itemsize
    header[name] = {
      'dtype': _DTYPE_NAMES[dtype.name],
      'shape': list(shape),
      'data_offsets': [first, end],
    }
  text = json.dumps(header, separators=(',', ':'))
  return text + ' ' * (-len(text.encode()) % _ALIGNMENT)


def header_tensors(
  header: str,
) -> tuple[dict[str, tuple[tuple[int, ...], np.dtype]], dict[str, str]]:
  """Returns shape and dtype by name, in the order of the data; and metadata."""
  content = json.loads(header)
  metadata = content.pop(_METADATA, {})
  ordered = sorted(content.items(), key=lambda item: item[1]['data_offsets'])
  return {
    name: (tuple(entry['shape']), _DTYPES[entry['dtype']])
    for name, entry in ordered
  }, metadata


def write(
  file: pathlib.Path, header: str, tensors: Iterable[np.ndarray]
) -> None:
  """Writes a file, one tensor after the other.

  Args:
    file: Its path.
    header: See `make_header`.
    tensors: In the order of their positions; see `write_files`.

  Raises:
    OSError: The file cannot be written.
  """
  names, _ = header_tensors(header)
  write_files({file: header}, zip(names, tensors, strict=True))


def write_files(
  headers: Mapping[pathlib.Path, str],
  tensors: Iterable[tuple[str, np.ndarray]],
) -> None:
  """Writes files, one tensor after the other; on return they are complete.

  Args:
    headers: See `make_header`, by path. Their names differ.
    tensors: Names and values, in any order. An array may have any strides, and
      any shape with the elements in the order of the tensor.

  Raises:
    ValueError: A tensor is missing.
    OSError: A file cannot be written.
  """
  with contextlib.ExitStack() as stack:
    positions: dict[str, tuple[BinaryIO, int]] = {}
    for path, header in headers.items():
      f = stack.enter_context(atomic_file.open_atomic(path))
      encoded = header.encode()
      f.write(struct.pack('<Q', len(encoded)))
      f.write(encoded)
      start = f.tell()
      for name, entry in _parse(header, path).items():
        positions[name] = f, start + entry['data_offsets'][0]
    for name, tensor in tensors:
      f, position = positions.pop(name)
      f.seek(position)
      _write_tensor(f, tensor)
    if positions:
      raise ValueError(
        f'{sorted(headers)} must have all tensors of their headers, got none of'
        f' {sorted(positions)[:3]}'
      )


def _write_tensor(f: BinaryIO, tensor: np.ndarray) -> None:
  for block in _blocks(tensor):
    f.write(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)


def _blocks(tensor: np.ndarray) -> Iterator[np.ndarray]:
  """Yields consecutive parts of at most `_BLOCK_BYTES`, if rows are smaller."""
  if tensor.ndim == 0 or tensor.nbytes <= _BLOCK_BYTES:
    yield tensor
    return
  row_bytes = tensor.nbytes // len(tensor)
  if row_bytes > _BLOCK_BYTES:
    for row in tensor:
      yield from _blocks(row)
    return
  rows = max(1, _BLOCK_BYTES // row_bytes)
  for first in range(0, len(tensor), rows):
    yield tensor[first : first + rows]


def _parse(header: str, file: pathlib.Path) -> dict[str, Any]:
  try:
    content = json.loads(header)
    content.pop(_METADATA, None)
    for name, entry in content.items():
      _check_entry(name, entry)
    return content
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    raise _damaged_header(file, e) from e


def _check_entry(name: str, entry: Mapping[str, Any]) -> None:
  """Checks the types of an entry of a header.

  Raises:
    ValueError: One is wrong, or a number is negative.
    KeyError: A field is missing.
    TypeError: The entry is no object.
  """
  dtype, shape, offsets = (
    entry[field] for field in ('dtype', 'shape', 'data_offsets')
  )
  is_complete = isinstance(dtype, str) and all(
    isinstance(numbers, list)
    and all(type(n) is int and n >= 0 for n in numbers)
    for numbers in (shape, offsets)
  )
  if not is_complete or len(offsets) != 2:
    raise ValueError(
      f'{name} must have a dtype, a shape and two data_offsets, got'
      f' {dict(entry)}'
    )


def _damaged_header(file: pathlib.Path, error: Exception) -> ValueError:
  return ValueError(
    f'the header of {file} is damaged ({error}); copy the file again'
  )
