# SPDX-License-Identifier: Apache-2.0
"""Manifest of a checkpoint: sizes and checksums of its files.

Every process lists its files in `manifest/process_<i>-of-<n>.json`, which it
writes last: the manifest also marks the process as done.
"""

from __future__ import annotations

import json
import pathlib
import time
import zlib
from collections.abc import Iterable, Mapping
from concurrent import futures

import numpy as np

from pax import atomic_file
from pax.checkpoints.types import CheckpointError, CorruptCheckpointError

Path = pathlib.Path
Entry = tuple[int, int]  # Size in bytes and CRC-32.

_DIRECTORY = 'manifest'
_POLL_SECS = 0.01
_THREADS = 8


def entry(data: bytes | np.ndarray) -> Entry:
  """Returns the entry of a file that contains `data`."""
  if not isinstance(data, bytes):
    # CRC-32 needs bytes, as which any dtype can be viewed without a copy.
    data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
  return len(data), zlib.crc32(data)


def process_name(index: int, count: int) -> str:
  """Returns the file name of process `index` of `count`."""
  return f'process_{index}-of-{count}'


def write(
  directory: Path, entries: Mapping[str, Entry], index: int, count: int
) -> None:
  """Writes the manifest of one process.

  Args:
    directory: The checkpoint.
    entries: Entries by path below the checkpoint.
    index: Index of the process.
    count: Number of processes.
  """
  name = f'{process_name(index, count)}.json'
  text = json.dumps(entries, sort_keys=True)
  atomic_file.write_text(directory / _DIRECTORY / name, text)


def wait_for_all(directory: Path, count: int, timeout_secs: float) -> None:
  """Waits for the manifests of all processes.

  Raises:
    CheckpointError: A manifest is missing after the timeout.
  """
  names = [f'{process_name(i, count)}.json' for i in range(count)]
  deadline = time.monotonic() + timeout_secs
  while missing := [
    name for name in names if not (directory / _DIRECTORY / name).exists()
  ]:
    if time.monotonic() > deadline:
      raise CheckpointError(
        f'{len(missing)} of {count} processes had not written their part of'
        f' {directory} after {timeout_secs:.0f} s (first {missing[0]}); all'
        ' hosts must see the same --job_log_dir'
      )
    time.sleep(_POLL_SECS)


def verify(
  directory: Path,
  part: int = 0,
  num_parts: int = 1,
  folders: Iterable[str] | None = None,
) -> None:
  """Checks the size of every file, and the checksums of a part of them.

  The processes of a job each take a part, so that they share the reading.

  Args:
    directory: The checkpoint.
    part: Index of the part whose checksums are compared.
    num_parts: Number of parts.
    folders: Folders whose files are checked; None is all.

  Raises:
    CorruptCheckpointError: A file is missing or differs.
  """
  entries = _read_all(directory)
  if folders is not None:
    selected = set(folders)
    entries = {
      name: file_entry
      for name, file_entry in entries.items()
      if name.rpartition('/')[0] in selected
    }
  own_part = set(sorted(entries)[part::num_parts])
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    for fault in pool.map(
      lambda name: _fault(directory / name, entries[name], name in own_part),
      entries,
    ):
      if fault:
        raise CorruptCheckpointError(fault)


def _read_all(directory: Path) -> dict[str, Entry]:
  entries: dict[str, Entry] = {}
  folder = directory / _DIRECTORY
  for file in folder.glob('process_*.json') if folder.exists() else ():
    try:
      entries.update(json.loads(file.read_text()))
    except ValueError as e:
      raise CorruptCheckpointError(f'{file} is not JSON ({e})') from e
  return entries


def _fault(path: Path, expected: Entry, checks_sum: bool) -> str | None:
  if not path.exists():
    return f'{path} is missing'
  size = path.stat().st_size
  if size != expected[0]:
    return f'{path} has {size} bytes, {expected[0]} were written'
  if checks_sum and entry(path.read_bytes()) != tuple(expected):
    return f'{path} is not what was written (its checksum differs)'
  return None
