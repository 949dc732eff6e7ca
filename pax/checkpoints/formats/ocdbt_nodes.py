# SPDX-License-Identifier: Apache-2.0
"""Where the values of an OCDBT database are, by its manifest and its nodes.

The format is that of
https://google.github.io/tensorstore/kvstore/ocdbt/index.html#storage-format.
TensorStore's own `ocdbt.dump` leaks what it returns (docs/known_issues.md), a
KiB for each value of each save.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import google_crc32c

from pax.files import storage

if sys.version_info >= (3, 14):
  from compression import zstd
else:
  from backports import zstd

MANIFEST = 'manifest.ocdbt'
_MANIFEST_MAGIC = 0x0CDB3A2A
_NODE_MAGIC = 0x0CDB20DE
_UUID_BYTES = 16
_LEVEL_BYTES = 4
_CHECKSUM_BYTES = 4
_SINGLE_FILE = 0
_ZSTD = 1


class Reference(NamedTuple):
  """A part of a file of the database."""

  # Path below the folder of the database.
  file: str
  offset: int
  size: int


class _DataFile(NamedTuple):
  # Path below the folder of the database.
  path: str
  # The files to which a node in this file refers have paths below it.
  base: str


class _Node(NamedTuple):
  """Where a node is, and what it inherits."""

  reference: Reference
  base: str
  # All keys below the node begin so.
  key_prefix: bytes
  # Of leaves 0.
  height: int


def read_values(
  folder: storage.Path,
) -> Iterator[tuple[str, bytes | Reference]]:
  """Yields (key, value) of the newest version of a database.

  A small value is in the node itself.

  Args:
    folder: The folder of the database, with the files of its nodes.

  Raises:
    ValueError: The manifest or a node is not as documented.
    OSError: A file cannot be read.
  """
  nodes = [_root((folder / MANIFEST).read_bytes())]
  while nodes:
    node = nodes.pop()
    file, offset, size = node.reference
    with (folder / file).open('rb') as stream:
      stream.seek(offset)
      body = _body(stream.read(size), _NODE_MAGIC)
    if (height := body.byte()) != node.height:
      raise ValueError(
        f'the height of an OCDBT node must be {node.height}, got {height}'
      )
    files = body.data_files(node.base)
    if height:
      nodes += reversed(_children(body, files, node))
    else:
      yield from _leaf_values(body, files, node.key_prefix)


class _Fields:
  """The fields of an encoded manifest or node, in their order."""

  def __init__(self, data: bytes):
    self._data = data
    self._position = 0

  def take(self, size: int) -> bytes:
    """Returns the next bytes.

    Raises:
      ValueError: There are fewer.
    """
    start, self._position = self._position, self._position + size
    if self._position > len(self._data):
      raise ValueError(f'an OCDBT node ends after {len(self._data)} bytes')
    return self._data[start : self._position]

  def rest(self) -> bytes:
    """Returns all further bytes."""
    return self.take(len(self._data) - self._position)

  def byte(self) -> int:
    """Returns an integer of one byte."""
    return self.take(1)[0]

  def varint(self) -> int:
    """Returns an unsigned LEB128 integer."""
    number = shift = 0
    while (byte := self.byte()) & 0x80:
      number |= (byte & 0x7F) << shift
      shift += 7
    return number | byte << shift

  def varints(self, count: int) -> list[int]:
    """Returns so many integers."""
    return [self.varint() for _ in range(count)]

  def prefix_sizes(self, count: int) -> list[int]:
    """Returns how many bytes each string shares with the one before."""
    return [0, *self.varints(count - 1)] if count else []

  def joined(
    self, prefixes: Sequence[int], suffixes: Sequence[int]
  ) -> list[bytes]:
    """Returns strings of which each begins as the one before.

    Args:
      prefixes: How many bytes each shares with the one before.
      suffixes: How many bytes of each follow.
    """
    strings = [b'']
    for prefix, suffix in zip(prefixes, suffixes, strict=True):
      strings.append(strings[-1][:prefix] + self.take(suffix))
    return strings[1:]

  def data_files(self, base: str) -> list[_DataFile]:
    """Returns the table of files.

    Args:
      base: The folder below which their paths are.
    """
    count = self.varint()
    prefixes = self.prefix_sizes(count)
    suffixes = self.varints(count)
    base_sizes = self.varints(count)
    return [
      _DataFile(base + path.decode(), base + path[:size].decode())
      for path, size in zip(
        self.joined(prefixes, suffixes), base_sizes, strict=True
      )
    ]


def _body(data: bytes, magic: int) -> _Fields:
  """Returns the fields after the header of a manifest or a node."""
  header = _Fields(data)
  found = int.from_bytes(header.take(4), 'big')
  size = int.from_bytes(header.take(8), 'little')
  version, compression = header.varints(2)
  if (found, size, version) != (magic, len(data), 0):
    raise ValueError(
      f'an OCDBT node begins with {magic:#x}, its {len(data)} bytes and version'
      f' 0; got {found:#x}, {size} and {version}'
    )
  body = header.rest()[:-_CHECKSUM_BYTES]
  checksum = int.from_bytes(data[-_CHECKSUM_BYTES:], 'little')
  if google_crc32c.value(data[:-_CHECKSUM_BYTES]) != checksum:
    raise ValueError('the checksum of an OCDBT node differs')
  return _Fields(zstd.decompress(body) if compression == _ZSTD else body)


def _root(data: bytes) -> _Node:
  """Returns the root of the newest version in a manifest."""
  manifest = _body(data, _MANIFEST_MAGIC)
  manifest.take(_UUID_BYTES)
  kind, _, _ = manifest.varints(3)
  if kind != _SINGLE_FILE:
    raise ValueError(f'the kind of an OCDBT manifest must be 0, got {kind}')
  # The arity of the tree of versions.
  manifest.byte()
  if manifest.varint() == _ZSTD:
    manifest.take(_LEVEL_BYTES)
  files = manifest.data_files('')
  count = manifest.varint()
  # Their numbers.
  manifest.varints(count)
  heights = manifest.take(count)
  reference, base = _references(manifest, files, count)[-1]
  return _Node(reference, base, b'', heights[-1])


def _references(
  fields: _Fields, files: Sequence[_DataFile], count: int
) -> list[tuple[Reference, str]]:
  """Returns references to nodes, and the base of each."""
  ids, offsets, sizes = (fields.varints(count) for _ in range(3))
  return [
    (Reference(files[file].path, offset, size), files[file].base)
    for file, offset, size in zip(ids, offsets, sizes, strict=True)
  ]


def _children(
  body: _Fields, files: Sequence[_DataFile], parent: _Node
) -> list[_Node]:
  """Returns the children of an interior node."""
  count = body.varint()
  prefixes = body.prefix_sizes(count)
  suffixes = body.varints(count)
  common = body.varints(count)
  keys = body.joined(prefixes, suffixes)
  return [
    _Node(*reference, parent.key_prefix + key[:size], parent.height - 1)
    for key, size, reference in zip(
      keys, common, _references(body, files, count), strict=True
    )
  ]


def _leaf_values(
  body: _Fields, files: Sequence[_DataFile], key_prefix: bytes
) -> Iterator[tuple[str, bytes | Reference]]:
  """Yields the keys and values of a leaf node."""
  count = body.varint()
  prefixes = body.prefix_sizes(count)
  suffixes = body.varints(count)
  keys = body.joined(prefixes, suffixes)
  sizes = body.varints(count)
  is_indirect = body.varints(count)
  ids = iter(body.varints(sum(is_indirect)))
  offsets = iter(body.varints(sum(is_indirect)))
  for key, size, indirect in zip(keys, sizes, is_indirect, strict=True):
    name = (key_prefix + key).decode()
    if indirect:
      yield name, Reference(files[next(ids)].path, next(offsets), size)
    else:
      yield name, body.take(size)
