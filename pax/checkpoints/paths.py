# SPDX-License-Identifier: Apache-2.0
"""Where checkpoints lie in a job directory, and how one comes into being.

A checkpoint is written under a temporary name and renamed when it is complete,
so whatever has a checkpoint's name is whole.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil

from pax.checkpoints.types import CheckpointType

CHECKPOINTS = 'checkpoints'
METADATA_FILE = 'metadata'
_TMP = 'tmp_'
_NAME = re.compile(r'(?:checkpoint_)?(\d+)')


def checkpoint_name(step: int, kind: CheckpointType) -> str:
  digits = '' if kind is CheckpointType.FLAX else '08'
  return f'checkpoint_{step:{digits}d}'


def steps(directory: pathlib.Path) -> dict[int, pathlib.Path]:
  """The complete checkpoints within `directory`, by step, oldest first."""
  if not directory.exists():
    return {}
  found = {
    int(match[1]): path
    for path in directory.iterdir()
    if (match := _NAME.fullmatch(path.name))
  }
  return dict(sorted(found.items()))


def staging(final: pathlib.Path) -> pathlib.Path:
  """Where the files of the checkpoint `final` are put before it is complete."""
  return final.parent / f'{_TMP}{final.name}'


def commit(source: pathlib.Path, final: pathlib.Path) -> None:
  """Makes `source`, a finished file or directory, the checkpoint `final`."""
  _sync(source)
  source.rename(final)
  _sync(final.parent)


def delete(path: pathlib.Path) -> None:
  """Removes a checkpoint so that no half of it is ever taken for a whole."""
  doomed = path.parent / f'{_TMP}delete_{path.name}'
  path.rename(doomed)
  discard(doomed)


def clean(directory: pathlib.Path) -> None:
  """Removes what a killed process left behind."""
  if not directory.exists():
    return
  for path in directory.iterdir():
    if path.name.startswith(_TMP):
      discard(path)


def write_json(path: pathlib.Path, text: str) -> None:
  """Writes `text` so that a reader sees all of it or no file."""
  part = path.parent / f'{path.name}.part'
  part.write_text(text)
  part.rename(path)


def discard(path: pathlib.Path) -> None:
  if path.is_dir():
    shutil.rmtree(path, ignore_errors=True)
  else:
    path.unlink(missing_ok=True)


def _sync(path: pathlib.Path) -> None:
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
