# SPDX-License-Identifier: Apache-2.0
"""TFRecord files and tf.train.Example messages, without TensorFlow.

A record is its length, a checksum of the length, the data and their checksum:
https://www.tensorflow.org/tutorials/load_data/tfrecord
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import google_crc32c
import jax
import jax.numpy as jnp
import numpy as np

_MASK_DELTA = 0xA282EAD8
# The largest integer of an int64_list.
_MAX_INT = 2**63 - 1
# Wire types of protocol buffers.
_VARINT, _FIXED_64, _LENGTH_DELIMITED, _FIXED_32 = 0, 1, 2, 5


def write(file: BinaryIO, records: Iterable[bytes]) -> None:
  """Appends records to an open file."""
  for record in records:
    length = struct.pack('<Q', len(record))
    file.write(length + _checksum(length) + record + _checksum(record))


def read(file: BinaryIO) -> Iterator[bytes]:
  """Yields the records of an open file.

  Raises:
    ValueError: A record is truncated, or a checksum differs.
  """
  at = 0
  while header := file.read(12):
    # A wrong length may be larger than the memory.
    has_length = header[8:] == _checksum(header[:8])
    size = struct.unpack('<Q', header[:8])[0] if has_length else 0
    record, end = file.read(size), file.read(4)
    if not has_length or end != _checksum(record):
      raise ValueError(
        f'a record at byte {at} is damaged; write the file again'
      )
    at += 16 + size
    yield record


def is_intact(record: bytes, checksum: bytes) -> bool:
  """Returns whether the 4 bytes after a record are its checksum."""
  return checksum == _checksum(record)


def offsets(file: BinaryIO) -> np.ndarray:
  """Returns (offset, size) of the data of each record, [N, 2].

  Only the lengths are read.

  Raises:
    ValueError: The file is not a TFRecord file, or it is truncated.
  """
  end = file.seek(0, os.SEEK_END)
  spans, at = [], 0
  while at < end:
    file.seek(at)
    header = file.read(12)
    size = struct.unpack('<Q', header[:8])[0] if len(header) == 12 else end
    # The first checksum identifies the format, sizes detect truncation.
    is_wrong = not at and header[8:] != _checksum(header[:8])
    if is_wrong or at + 16 + size > end:
      raise ValueError(
        f'byte {at} of {getattr(file, "name", file)!r} must begin a'
        ' complete record; write the file again'
      )
    spans.append((at + 12, size))
    at += 16 + size
  return np.array(spans, np.int64).reshape(-1, 2)


def example(features: Mapping[str, Any]) -> bytes:
  """Returns a serialized tf.train.Example of arrays by name.

  Floats become a float_list, integers and booleans an int64_list, bytes and
  strings a bytes_list. Arrays are flattened: the format has no shapes.

  Raises:
    ValueError: A feature has other values, such as complex numbers.
  """
  entries = b''.join(
    _field(1, _field(1, name.encode()) + _field(2, _feature(name, value)))
    for name, value in sorted(features.items())
  )
  return _field(1, entries)


def parse_example(
  record: bytes, names: Sequence[str] | None = None
) -> dict[str, list[bytes] | np.ndarray]:
  """Returns the features of a serialized tf.train.Example by name.

  A bytes_list is a list of bytes, a float_list an array of float32, an
  int64_list an array of int64; a feature without values is an empty list.

  Args:
    record: The serialized example.
    names: Names of the features to return; None is all.

  Raises:
    ValueError: The record is not a tf.train.Example.
  """
  features: dict[str, list[bytes] | np.ndarray] = {}
  try:
    for _, message in _fields(memoryview(record)):
      for _, entry in _fields(message):
        # Map entry: field 1 is the key, field 2 the value.
        parts = dict(_fields(entry))
        name = bytes(parts[1]).decode()
        if names is None or name in names:
          features[name] = _values(parts.get(2, b''))
  except (IndexError, KeyError, TypeError, ValueError) as e:
    raise ValueError(
      'a record must be a serialized tf.train.Example, got'
      f' {bytes(record[:20])!r}...; see pax.files.tf_records.example'
    ) from e
  return features


def flat(tree: Any) -> dict[str, Any]:
  """Returns the leaves of nested maps by slash path, the names of TFDS."""
  is_leaf = lambda x: not isinstance(x, Mapping)
  leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): leaf
    for path, leaf in leaves
  }


def _feature(name: str, value: Any) -> bytes:
  array = np.asarray(value)
  if array.dtype.kind in 'SU' and not isinstance(value, np.ndarray):
    # Arrays of texts lose NULs at the end of a text; those of objects do not.
    array = np.asarray(value, object)
  if array.dtype.kind in 'SUO':
    texts = [x.encode() if isinstance(x, str) else x for x in array.ravel()]
    if all(isinstance(text, bytes | bytearray) for text in texts):
      return _field(1, b''.join(_field(1, bytes(text)) for text in texts))
  elif array.dtype.kind == 'b' or jnp.issubdtype(array.dtype, np.integer):
    if array.max(initial=0) <= _MAX_INT:
      numbers = b''.join(_varint(int(x) % 2**64) for x in array.ravel())
      return _field(3, _field(1, numbers))
  elif jnp.issubdtype(array.dtype, np.floating):
    return _field(2, _field(1, array.astype('<f4').tobytes()))
  raise ValueError(
    f'feature {name!r} of a tf.train.Example must have floats, integers of 64'
    f' bits or texts, got {array.dtype} {array!r:.60}; convert it'
  )


def _values(feature: memoryview) -> list[bytes] | np.ndarray:
  """Returns the values of a tf.train.Feature, packed or unpacked."""
  for kind, values in _fields(feature):
    items = [item for _, item in _fields(values)]
    if kind == 1:
      return [bytes(item) for item in items]
    if kind == 2:
      return np.frombuffer(b''.join(items), '<f4')
    numbers = [_varints(x) if isinstance(x, memoryview) else [x] for x in items]
    return np.concatenate([np.zeros(0, np.int64), *numbers]).astype(np.int64)
  return []


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
  """Yields (number, value) of the fields; bytes, or int64 for a varint."""
  at = 0
  while at < len(data):
    key, at = _read_varint(data, at)
    kind = key & 7
    if kind == _VARINT:
      value, at = _read_varint(data, at)
      yield key >> 3, np.uint64(value).astype(np.int64)
      continue
    sizes = {_FIXED_32: 4, _FIXED_64: 8}
    if kind == _LENGTH_DELIMITED:
      size, at = _read_varint(data, at)
    else:
      size = sizes[kind]
    if at + size > len(data):
      raise ValueError('a field reaches beyond its message')
    yield key >> 3, data[at : at + size]
    at += size


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
  """Returns the varint at `at`, and the offset of its end."""
  value = shift = 0
  while (byte := data[at]) > 0x7F:
    value |= (byte & 0x7F) << shift
    at, shift = at + 1, shift + 7
  return value | byte << shift, at + 1


def _varints(data: memoryview) -> np.ndarray:
  """Returns packed varints as int64."""
  codes = np.frombuffer(data, np.uint8)
  ends = np.flatnonzero(codes < 0x80) + 1
  starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
  if not len(codes):
    return np.zeros(0, np.int64)
  places = np.arange(len(codes)) - np.repeat(starts, ends - starts)
  parts = (codes & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
  return np.add.reduceat(parts, starts).astype(np.int64)


def _field(number: int, data: bytes) -> bytes:
  """Returns a length-delimited field of a protocol buffer."""
  return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
  out = bytearray()
  while value > 0x7F:
    out.append(value & 0x7F | 0x80)
    value >>= 7
  out.append(value)
  return bytes(out)


def _checksum(data: bytes) -> bytes:
  crc = google_crc32c.value(data)
  rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
  return struct.pack('<I', (rotated + _MASK_DELTA) & 0xFFFFFFFF)
