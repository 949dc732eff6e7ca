# SPDX-License-Identifier: Apache-2.0
"""Checksums of the files of a database, from the memory that was written.

The files are not read for them, but for the nodes between the chunks: that is
faster, and what TensorStore or the file system did not write as it should
differs from its checksum.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from concurrent import futures

import jax
from isal import isal_zlib

from pax.checkpoints.formats import (
  array_chunks,
  chunk_index,
  manifest,
  tensorstore_format,
)
from pax.checkpoints.formats.host_arrays import HostArray
from pax.files import storage

# The bytes of smaller arrays are read from their files.
_MIN_ARRAY_BYTES = 2**20


def file_entries(
  checkpoint: pathlib.Path, database: str, arrays: Mapping[str, HostArray]
) -> dict[str, manifest.Entry]:
  """Returns the manifest entries of the files of an OCDBT database.

  Args:
    checkpoint: The checkpoint.
    database: Path of the database below it, which is complete.
    arrays: The parts of arrays that it contains, by name.

  Raises:
    OSError: A file cannot be read.
  """
  sizes = {
    f'{database}/{name}': size
    for name, size in storage.file_sizes(checkpoint / database).items()
  }
  known: dict[str, dict[manifest.Part, int]] = {}
  arrays = {
    k: v for k, v in arrays.items() if _num_bytes(v) >= _MIN_ARRAY_BYTES
  }
  if arrays:
    with tensorstore_format.raise_as(OSError, checkpoint / database):
      values = chunk_index.read_values(checkpoint, database)
    prefixes = {name: f'{name}/' for name in arrays}
    index = chunk_index.ChunkIndex(prefixes, values)
    contents = [
      content
      for name, array in arrays.items()
      for content in _contents(index, sizes, name, array)
    ]
    with futures.ThreadPoolExecutor(os.cpu_count(), 'checksum') as pool:
      checksums = pool.map(lambda x: isal_zlib.crc32(x[1]), contents)
      for (location, _), crc in zip(contents, checksums, strict=True):
        known.setdefault(location.file, {})[location.part] = crc
  return manifest.file_entries(checkpoint, sizes, known)


def _num_bytes(array: HostArray) -> int:
  return sum(part.nbytes for _, part in array.parts)


def _contents(
  index: chunk_index.ChunkIndex,
  sizes: Mapping[str, int],
  name: str,
  array: HostArray,
) -> list[tuple[chunk_index.Location, memoryview]]:
  """Returns the chunks of an array, and their bytes in memory.

  Those that are not stored as they are in memory are left out.

  Args:
    index: Where the chunks are.
    sizes: Sizes of the files.
    name: Name of the array.
    array: Its parts.
  """
  leaf = jax.ShapeDtypeStruct(array.shape, array.dtype)
  stored = array_chunks.find(index, sizes, name, leaf, is_partial=True)
  if stored is None:
    return []
  return list(stored.contents([array_chunks.Shard(*x) for x in array.parts]))
