# SPDX-License-Identifier: Apache-2.0
"""Manifest of a checkpoint: sizes and checksums of its files.

Every process lists its files in `manifest/process_<i>-of-<n>.json`, in
`paths.side_folder`, which it writes last. A manifest contains its own checksum.
Those of older versions are the list alone.
"""

from __future__ import annotations

import json
import pathlib
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from concurrent import futures
from typing import Any

import numpy as np
from isal import isal_zlib

from pax.checkpoints import paths
from pax.checkpoints.types import CorruptCheckpointError
from pax.files import atomic_file, storage

Path = storage.Path
Entry = tuple[int, int]  # Size in bytes and CRC-32.
Part = tuple[int, int]  # Offset and size of a part of a file.
# CRC-32 of parts of files, by path below the checkpoint; they do not overlap.
Parts = Mapping[str, Mapping[Part, int]]

_FILE_NAME = re.compile(r'process_\d+-of-(\d+)\.json')
_THREADS = 8
# Requests take longer than the processor needs for what they return.
_BUCKET_THREADS = 16
# A part of a file that one thread reads.
_PART_BYTES = 32 * 2**20
# Fits into the cache of a core.
_BUFFER_BYTES = 2**18
_NONE: Parts = types.MappingProxyType({})


def entry(data: bytes | np.ndarray) -> Entry:
  """Returns the entry of a file that contains `data`."""
  if not isinstance(data, bytes):
    # CRC-32 needs bytes, as which any dtype can be viewed without a copy.
    data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
  return len(data), isal_zlib.crc32(data)


def file_entries(
  directory: Path, names: Iterable[str], known: Parts = _NONE
) -> dict[str, Entry]:
  """Returns the entries of files, as they are on the disk.

  Args:
    directory: The checkpoint.
    names: Paths below the checkpoint.
    known: Checksums of parts of the files, which are not read.

  Raises:
    OSError: A file cannot be read.
  """
  sizes = {name: (directory / name).stat().st_size for name in names}
  checksums = _checksums(directory, sizes, known)
  return {name: (size, checksums[name]) for name, size in sizes.items()}


def process_name(index: int, count: int) -> str:
  """Returns the file name of process `index` of `count`."""
  return f'process_{index}-of-{count}'


def file(directory: Path, index: int, count: int) -> Path:
  """Returns the manifest of process `index` of `count`."""
  name = f'{process_name(index, count)}.json'
  return paths.side_folder(directory) / paths.MANIFEST_FOLDER / name


def write(
  directory: pathlib.Path, entries: Mapping[str, Entry], index: int, count: int
) -> None:
  """Writes the manifest of one process; its files are on the disk then.

  Args:
    directory: The checkpoint.
    entries: Entries by path below the checkpoint.
    index: Index of the process.
    count: Number of processes.
  """
  manifest_file = file(directory, index, count)
  manifest_file.parent.mkdir(exist_ok=True)
  atomic_file.write_text(manifest_file, _serialize(entries), is_durable=False)
  name = str(manifest_file.relative_to(directory))
  paths.sync_files(directory, [*entries, name])


def read(directory: Path) -> dict[str, Entry] | None:
  """Returns the entries of all processes; None if there is no manifest.

  Raises:
    CorruptCheckpointError: A manifest is damaged, or that of a process is
      missing.
  """
  folder = paths.side_folder(directory) / paths.MANIFEST_FOLDER
  try:
    names = [p.name for p in folder.iterdir() if not p.name.startswith('.')]
  except FileNotFoundError:
    return None
  if not names:
    return None
  match = _FILE_NAME.fullmatch(min(names))
  count = int(match[1]) if match else 0
  expected = [file(directory, index, count) for index in range(count)]
  if unexpected := set(names) - {path.name for path in expected}:
    raise CorruptCheckpointError(
      f'{folder / min(unexpected)} is not part of the checkpoint'
    )
  entries: dict[str, Entry] = {}
  for path in expected:
    if not path.exists():
      raise CorruptCheckpointError(f'{path} is missing')
    entries |= _parse(path)
  return entries


def check_files(
  directory: Path, sizes: Mapping[str, int], entries: Mapping[str, Entry]
) -> None:
  """Checks that a checkpoint has the files of its manifests, and no others.

  Hidden files other than those of zarr are ignored, such as those of NFS.

  Args:
    directory: The checkpoint.
    sizes: Sizes of its files by path below the checkpoint.
    entries: Entries by path below the checkpoint.

  Raises:
    CorruptCheckpointError: A file is in no manifest, is missing, or has another
      size.
  """
  manifests = paths.side_folder(directory) / paths.MANIFEST_FOLDER
  # Older manifests do not list the metadata.
  unlisted = (paths.METADATA_FILE, storage.MARKER)
  for name in sizes.keys() - entries.keys():
    path = directory / name
    is_hidden = path.name.startswith('.') and not path.name.startswith('.z')
    if not (is_hidden or name in unlisted or path.parent == manifests):
      raise CorruptCheckpointError(f'{path} is not part of the checkpoint')
  for name, (size, _) in entries.items():
    path = directory / name
    if name not in sizes:
      fault = 'not a file' if path.exists() else 'missing'
      raise CorruptCheckpointError(f'{path} is {fault}')
    if sizes[name] != size:
      raise CorruptCheckpointError(
        f'{path} has {sizes[name]} bytes, {size} were written'
      )


def verify(
  directory: Path, entries: Mapping[str, Entry], known: Parts = _NONE
) -> None:
  """Checks the checksums of files.

  Args:
    directory: The checkpoint.
    entries: Entries of the files by path below the checkpoint.
    known: Checksums of parts of files, which are not read again.

  Raises:
    CorruptCheckpointError: A file cannot be read, or differs.
  """
  sizes = {name: size for name, (size, _) in entries.items()}
  try:
    checksums = _checksums(directory, sizes, known)
  except OSError as e:
    raise CorruptCheckpointError(
      f'{e.filename} cannot be read ({e.strerror})'
    ) from e
  for name, crc in checksums.items():
    if crc != entries[name][1]:
      raise CorruptCheckpointError(
        f'{directory / name} is not what was written (its checksum differs)'
      )


def _checksums(
  directory: Path, sizes: Mapping[str, int], known: Parts
) -> dict[str, int]:
  """Returns the CRC-32 of files, of which threads read the unknown parts.

  Args:
    directory: The checkpoint.
    sizes: Sizes by path below the checkpoint.
    known: Checksums of parts of files.

  Raises:
    OSError: A file cannot be read.
  """
  gaps = [
    (name, *part)
    for name, size in sizes.items()
    for part in _gaps(known.get(name, ()), size)
  ]
  parts = {name: dict(known.get(name, {})) for name in sizes}
  with futures.ThreadPoolExecutor(num_threads(directory)) as pool:
    of_gaps = pool.map(lambda gap: checksum(directory, *gap), gaps)
    for (name, start, size), crc in zip(gaps, of_gaps, strict=True):
      parts[name][start, size] = crc
  checksums = dict.fromkeys(sizes, 0)
  for name, of_file in parts.items():
    for (_, size), crc in sorted(of_file.items()):
      checksums[name] = isal_zlib.crc32_combine(checksums[name], crc, size)
  return checksums


def _gaps(parts: Iterable[Part], size: int) -> Iterator[Part]:
  """Yields the other parts of a file, divided for threads."""
  position = 0
  for start, part_size in (*sorted(parts), (size, 0)):
    for offset in range(position, start, _PART_BYTES):
      yield offset, min(_PART_BYTES, start - offset)
    position = start + part_size


def num_threads(path: Path) -> int:
  """Returns how many threads read files of a disk or a bucket."""
  return _BUCKET_THREADS if isinstance(path, storage.BucketPath) else _THREADS


def checksum(directory: Path, name: str, start: int, size: int) -> int:
  """Returns the CRC-32 of a part of a file, less if it ends before.

  Args:
    directory: The checkpoint.
    name: Path below the checkpoint.
    start: First byte.
    size: Number of bytes.

  Raises:
    OSError: The file cannot be read.
  """
  path = directory / name
  crc = 0
  try:
    if isinstance(path, storage.BucketPath):
      # One request.
      return isal_zlib.crc32(path.read_range(start, start + size))
    buffer = memoryview(bytearray(min(_BUFFER_BYTES, size)))
    with path.open('rb', buffering=0) as stream:
      stream.seek(start)
      while size and (count := stream.readinto(buffer[:size])):
        crc = isal_zlib.crc32(buffer[:count], crc)
        size -= count
  except OSError as e:
    # A failed read does not name its file.
    raise OSError(e.errno, e.strerror or str(e), str(path)) from e
  return crc


def _serialize(entries: Mapping[str, Entry]) -> str:
  files = json.dumps(entries, sort_keys=True)
  checksum = isal_zlib.crc32(files.encode())
  return f'{{"crc32": {checksum}, "files": {files}}}'


def _parse(path: Path) -> dict[str, Entry]:
  try:
    text = path.read_text()
    content = json.loads(text)
  except (OSError, ValueError, RecursionError) as e:
    raise CorruptCheckpointError(f'{path} cannot be read ({e})') from e
  if isinstance(content, dict) and set(content) == {'crc32', 'files'}:
    entries = content['files']
    # The comparison finds every change of the text.
    if _is_entries(entries) and _serialize(entries) == text:
      return entries
  elif _is_entries(content):
    return content
  raise CorruptCheckpointError(
    f'{path} is not what was written (its checksum differs)'
  )


def _is_entries(content: Any) -> bool:
  return isinstance(content, dict) and all(
    isinstance(pair, list) and [type(number) for number in pair] == [int, int]
    for pair in content.values()
  )
