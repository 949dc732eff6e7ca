# SPDX-License-Identifier: Apache-2.0
"""Manifest of a checkpoint: sizes and checksums of its files.

Every process lists its files in `manifest/process_<i>-of-<n>.json`, in
`paths.side_folder`, which it writes last. A manifest contains its own checksum.
Those of older versions are the list alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from typing import Any

import numpy as np
from isal import isal_zlib

from pax import atomic_file, storage
from pax.checkpoints import paths
from pax.checkpoints.types import CorruptCheckpointError

Path = storage.Path
Entry = tuple[int, int]  # Size in bytes and CRC-32.

_FILE_NAME = re.compile(r'process_\d+-of-(\d+)\.json')
_THREADS = 8
# A part of a file that one thread reads.
_PART_BYTES = 32 * 2**20
# Fits into the cache of a core.
_BUFFER_BYTES = 2**18


def entry(data: bytes | np.ndarray) -> Entry:
  """Returns the entry of a file that contains `data`."""
  if not isinstance(data, bytes):
    # CRC-32 needs bytes, as which any dtype can be viewed without a copy.
    data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
  return len(data), isal_zlib.crc32(data)


def file_entries(directory: Path, names: Iterable[str]) -> dict[str, Entry]:
  """Returns the entries of files, as they are on the disk.

  Args:
    directory: The checkpoint.
    names: Paths below the checkpoint.
  """
  sizes = {name: (directory / name).stat().st_size for name in names}
  checksums = _read_checksums(directory, sizes)
  return {name: (size, checksums[name]) for name, size in sizes.items()}


def process_name(index: int, count: int) -> str:
  """Returns the file name of process `index` of `count`."""
  return f'process_{index}-of-{count}'


def file(directory: Path, index: int, count: int) -> Path:
  """Returns the manifest of process `index` of `count`."""
  name = f'{process_name(index, count)}.json'
  return paths.side_folder(directory) / paths.MANIFEST_FOLDER / name


def write(
  directory: Path, entries: Mapping[str, Entry], index: int, count: int
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


def check_names(directory: Path, entries: Mapping[str, Entry]) -> None:
  """Checks that a checkpoint contains no other files.

  Hidden files other than those of zarr are ignored, such as those of NFS.

  Args:
    directory: The checkpoint.
    entries: Entries by path below the checkpoint.

  Raises:
    CorruptCheckpointError: A file is in no manifest.
  """
  manifests = paths.side_folder(directory) / paths.MANIFEST_FOLDER
  # Older manifests do not list the metadata.
  unlisted = (paths.METADATA_FILE, storage.MARKER)
  for file in storage.files(directory):
    path = directory / file
    is_hidden = path.name.startswith('.') and not path.name.startswith('.z')
    is_unlisted = is_hidden or file in unlisted or path.parent == manifests
    if file not in entries and not is_unlisted:
      raise CorruptCheckpointError(f'{path} is not part of the checkpoint')


def verify(
  directory: Path,
  entries: Mapping[str, Entry],
  is_checksummed: Callable[[str], bool] = lambda name: True,
) -> None:
  """Checks the presence, the sizes and the checksums of files.

  Args:
    directory: The checkpoint.
    entries: Entries by path below the checkpoint.
    is_checksummed: Whether to compare the checksum of the file at a path.

  Raises:
    CorruptCheckpointError: A file is missing or differs.
  """
  sizes = {name: entries[name][0] for name in filter(is_checksummed, entries)}
  try:
    _check_sizes(directory, entries)
    checksums = _read_checksums(directory, sizes)
  except OSError as e:
    raise CorruptCheckpointError(
      f'{e.filename} cannot be read ({e.strerror})'
    ) from e
  for name, crc in checksums.items():
    check_checksum(directory / name, crc, entries[name])


def _check_sizes(directory: Path, entries: Mapping[str, Entry]) -> None:
  """Checks the presence and the sizes of files.

  Raises:
    CorruptCheckpointError: A file is missing or has another size.
    OSError: The folder of a file cannot be read.
  """

  def fault(name: str) -> str | None:
    path, expected_size = directory / name, entries[name][0]
    if not path.exists():
      return f'{path} is missing'
    if not path.is_file():
      return f'{path} is not a file'
    size = path.stat().st_size
    if size != expected_size:
      return f'{path} has {size} bytes, {expected_size} were written'
    return None

  with futures.ThreadPoolExecutor(_THREADS) as pool:
    for text in filter(None, pool.map(fault, entries)):
      raise CorruptCheckpointError(text)


def check_checksum(path: Path, crc: int, expected: Entry) -> None:
  """Compares the checksum of a file with its manifest entry.

  Raises:
    CorruptCheckpointError: It differs.
  """
  if crc != expected[1]:
    raise CorruptCheckpointError(
      f'{path} is not what was written (its checksum differs)'
    )


def _read_checksums(
  directory: Path, sizes: Mapping[str, int]
) -> dict[str, int]:
  """Returns the CRC-32 of files, of which threads read parts.

  Args:
    directory: The checkpoint.
    sizes: Sizes by path below the checkpoint.

  Raises:
    OSError: A file cannot be read.
  """
  parts = [
    (name, start, min(_PART_BYTES, size - start))
    for name, size in sizes.items()
    for start in range(0, size, _PART_BYTES)
  ]
  checksums = dict.fromkeys(sizes, 0)
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    of_parts = pool.map(lambda part: checksum(directory, *part), parts)
    for (name, _, size), crc in zip(parts, of_parts, strict=True):
      checksums[name] = isal_zlib.crc32_combine(checksums[name], crc, size)
  return checksums


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
  if isinstance(path, storage.BucketPath):
    # One request.
    return isal_zlib.crc32(path.read_range(start, start + size))
  buffer = memoryview(bytearray(min(_BUFFER_BYTES, size)))
  crc = 0
  try:
    with path.open('rb', buffering=0) as stream:
      stream.seek(start)
      while size and (count := stream.readinto(buffer[:size])):
        crc = isal_zlib.crc32(buffer[:count], crc)
        size -= count
  except OSError as e:
    # A failed read does not name its file.
    raise OSError(e.errno, e.strerror, str(path)) from e
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
