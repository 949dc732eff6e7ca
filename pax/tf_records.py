# SPDX-License-Identifier: Apache-2.0
"""Files of records as TensorFlow reads them, written without TensorFlow.

A record is its length, a checksum of that, the data and a checksum of those:
https://www.tensorflow.org/tutorials/load_data/tfrecord
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import jax
import numpy as np

# The polynomial of CRC-32C, bits reversed (RFC 3720).
_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_LENGTH_DELIMITED = 2


def _make_table() -> tuple[int, ...]:
  table = []
  for value in range(256):
    for _ in range(8):
      value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
    table.append(value)
  return tuple(table)


_TABLE = _make_table()


def crc32c(data: bytes) -> int:
  """Returns the CRC-32C of `data`."""
  crc = 0xFFFFFFFF
  for byte in data:
    crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
  return crc ^ 0xFFFFFFFF


def write(file: BinaryIO, records: Iterable[bytes]) -> None:
  """Appends records to an open file."""
  for record in records:
    length = struct.pack('<Q', len(record))
    file.write(length + _checksum(length) + record + _checksum(record))


def read(file: BinaryIO) -> Iterator[bytes]:
  """Yields the records of an open file.

  Raises:
    ValueError: a record is cut short, or not what was written.
  """
  while header := file.read(12):
    length, found = header[:8], header[8:]
    size = struct.unpack('<Q', length)[0] if len(header) == 12 else 0
    record, end = file.read(size), file.read(4)
    if found != _checksum(length) or end != _checksum(record):
      raise ValueError(
        f'a record at byte {file.tell()} is damaged; write the file again'
      )
    yield record


def example(features: Mapping[str, Any]) -> bytes:
  """Returns a serialised tf.train.Example of arrays by name.

  Floats become a float_list, integers and booleans an int64_list, bytes and
  strings a bytes_list; shapes are left out, as there.
  """
  entries = b''.join(
    _field(1, _field(1, name.encode()) + _field(2, _feature(value)))
    for name, value in sorted(features.items())
  )
  return _field(1, entries)


def flat(tree: Any) -> dict[str, Any]:
  """Returns the leaves of nested maps by their path, as TFDS names them."""
  is_leaf = lambda x: not isinstance(x, Mapping)
  leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): leaf
    for path, leaf in leaves
  }


def _feature(value: Any) -> bytes:
  array = np.asarray(value)
  if array.dtype.kind in 'SUO':
    texts = [x.encode() if isinstance(x, str) else x for x in array.ravel()]
    return _field(1, b''.join(_field(1, bytes(text)) for text in texts))
  if array.dtype.kind in 'iub':
    numbers = b''.join(_varint(int(x) % 2**64) for x in array.ravel())
    return _field(3, _field(1, numbers))
  return _field(2, _field(1, array.astype('<f4').tobytes()))


def _field(number: int, data: bytes) -> bytes:
  """A field of a protocol buffer: its number, the size, the data."""
  return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
  out = bytearray()
  while value > 0x7F:
    out.append(value & 0x7F | 0x80)
    value >>= 7
  out.append(value)
  return bytes(out)


def _checksum(data: bytes) -> bytes:
  crc = crc32c(data)
  rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
  return struct.pack('<I', (rotated + _MASK_DELTA) & 0xFFFFFFFF)
