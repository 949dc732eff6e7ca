# SPDX-License-Identifier: Apache-2.0
"""Sizes and checksums of the files of a checkpoint, to tell when one is torn.

Every process lists what it wrote in `manifest/process_<i>-of-<n>.json`. That
file is the last one it writes, so it also says that the process is done.
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
  """What is listed of a file that holds `data`."""
  if not isinstance(data, bytes):
    # As bytes, which any dtype can be seen as; copied only if strided.
    data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
  return len(data), zlib.crc32(data)


def process_name(index: int, count: int) -> str:
  return f'process_{index}-of-{count}'


def write(
  directory: Path, entries: Mapping[str, Entry], index: int, count: int
) -> None:
  """Lists what process `index` of `count` wrote below `directory`."""
  name = f'{process_name(index, count)}.json'
  text = json.dumps(entries, sort_keys=True)
  atomic_file.write_text(directory / _DIRECTORY / name, text)


def wait_for_all(directory: Path, count: int, timeout_secs: float) -> None:
  """Returns when all processes have listed what they wrote."""
  names = [f'{process_name(i, count)}.json' for i in range(count)]
  deadline = time.monotonic() + timeout_secs
  while missing := [n for n in names if not _file(directory, n).exists()]:
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
  """Raises CorruptCheckpointError unless the files are as they were written.

  Sizes are compared for all files, checksums for every `num_parts`-th from
  `part` on, so that the processes of a job share the reading. With `folders`
  only the files right in those count.
  """
  entries = _read_all(directory)
  if folders is not None:
    wanted = set(folders)
    entries = {
      name: listed
      for name, listed in entries.items()
      if name.rpartition('/')[0] in wanted
    }
  mine = set(sorted(entries)[part::num_parts])
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    for fault in pool.map(
      lambda name: _fault(directory / name, entries[name], name in mine),
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


def _fault(path: Path, wanted: Entry, check_sum: bool) -> str | None:
  if not path.exists():
    return f'{path} is missing'
  size = path.stat().st_size
  if size != wanted[0]:
    return f'{path} has {size} bytes, {wanted[0]} were written'
  if check_sum and entry(path.read_bytes()) != tuple(wanted):
    return f'{path} is not what was written (its checksum differs)'
  return None


def _file(directory: Path, name: str) -> Path:
  return directory / _DIRECTORY / name
