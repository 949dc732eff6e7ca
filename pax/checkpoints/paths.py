# SPDX-License-Identifier: Apache-2.0
"""Where checkpoints lie in a job directory, and how one comes into being.

A checkpoint is written under a temporary name and renamed when it is complete,
so whatever has a checkpoint's name is whole. A bucket cannot rename: there the
last file written is `commit_success.txt`, and nothing counts without it.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
from typing import Any

from pax.checkpoints.contract import CheckpointType

CHECKPOINTS = 'checkpoints'
COMMIT_FILE = 'commit_success.txt'
METADATA_FILE = 'metadata'
_TMP = 'tmp_'
_NAME = re.compile(r'(?:checkpoint_)?(\d+)')

Path = Any  # pathlib.Path, or etils.epath.Path for a bucket.


def to_path(path: str | os.PathLike[str]) -> Path:
  """`path` as an object that reads and writes, local or in a bucket."""
  if '://' not in str(path):
    return pathlib.Path(path)
  from etils import epath

  return epath.Path(path)


def is_bucket(path: Path) -> bool:
  return '://' in str(path)


def checkpoint_name(step: int, kind: CheckpointType) -> str:
  digits = '' if kind is CheckpointType.FLAX else '08'
  return f'checkpoint_{step:{digits}d}'


def steps(directory: Path) -> dict[int, Path]:
  """The complete checkpoints within `directory`, by step, oldest first."""
  if not directory.exists():
    return {}
  found = {
    int(match[1]): path
    for path in directory.iterdir()
    if (match := _NAME.fullmatch(path.name)) and _is_committed(path)
  }
  return dict(sorted(found.items()))


def staging(final: Path) -> Path:
  """Where the files of the checkpoint `final` are put before it is complete."""
  return final if is_bucket(final) else final.parent / f'{_TMP}{final.name}'


def commit(source: Path, final: Path) -> None:
  """Makes `source`, a finished file or directory, the checkpoint `final`."""
  if is_bucket(final):
    (final / COMMIT_FILE).write_text('')
    return
  _sync(source)
  source.rename(final)
  _sync(final.parent)


def delete(path: Path) -> None:
  """Removes a checkpoint so that no half of it is ever taken for a whole."""
  if is_bucket(path):
    (path / COMMIT_FILE).unlink(missing_ok=True)
    path.rmtree(missing_ok=True)
    return
  doomed = path.parent / f'{_TMP}delete_{path.name}'
  path.rename(doomed)
  discard(doomed)


def clean(directory: Path) -> None:
  """Removes what a killed process left behind."""
  if not directory.exists():
    return
  for path in directory.iterdir():
    is_torn = _NAME.fullmatch(path.name) and not _is_committed(path)
    if path.name.startswith(_TMP) or is_torn:
      discard(path)


def write_json(path: Path, text: str) -> None:
  """Writes `text` so that a reader sees all of it or no file."""
  part = path.parent / f'{path.name}.part'
  part.write_text(text)
  part.rename(path)


def _is_committed(path: Path) -> bool:
  return not is_bucket(path) or (path / COMMIT_FILE).exists()


def discard(path: Path) -> None:
  if is_bucket(path):
    path.rmtree(missing_ok=True)
  elif path.is_dir():
    shutil.rmtree(path, ignore_errors=True)
  else:
    path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
