# SPDX-License-Identifier: Apache-2.0
"""Names on disk: checkpoints of a job directory and leaves of a train state.

A checkpoint is written under a temporary name and renamed when it is complete.
In a bucket it is written under its name, and a marker commits it
(`storage.MARKER`); a checkpoint that is one object needs none.

The name of a leaf is its key path: `mdl_vars.params.lm.softmax.w`,
`opt_states_0_2.m.params.lm.softmax.w`, `step`. Keys and attributes are joined
by dots, the index of a list by an underscore.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import re
import shlex
import shutil
from collections.abc import Collection
from concurrent import futures
from typing import Any, TypeVar

import jax
from absl import logging

from pax.checkpoints.types import CheckpointType, LeafDict
from pax.files import atomic_file, storage, working_copy

PathT = TypeVar('PathT', pathlib.Path, storage.BucketPath)

CHECKPOINTS = 'checkpoints'
METADATA_FILE = 'metadata'
# The types of the items of a checkpoint, for Orbax.
ORBAX_METADATA_FILE = '_CHECKPOINT_METADATA'
MANIFEST_FOLDER = 'manifest'
STATE_FOLDER = 'state'
# First characters of the names of what is being written or deleted.
TEMPORARY = 'tmp_'
# In the names of folders that Orbax writes, and renames when they are complete.
_ORBAX_TMP = '.orbax-checkpoint-tmp'
_PREFIX = 'checkpoint_'
# First characters of the names of checkpoints with frozen leaves.
FROZEN = 'frozen_'
_NAME = re.compile(rf'(?:{_PREFIX})?(\d+)')
# First two bytes of a msgpack map of at most 15 entries with short keys.
_MSGPACK_MAP = re.compile(rb'[\x80-\x8f][\xa0-\xbf]')
_THREADS = 8
_MARKER_TEXT = 'Checkpoint commit was successful.'
_MOVE_COMMANDS = {
  's3': ['aws', 's3', 'mv', '--recursive'],
  'gs': ['gcloud', 'storage', 'mv'],
}


def checkpoint_name(step: int, kind: CheckpointType) -> str:
  """Returns the file or directory name of the checkpoint of `step`."""
  digits = '' if kind is CheckpointType.FLAX else '08'
  return f'checkpoint_{step:{digits}d}'


def checkpoints_folder(job_log_dir: storage.PathLike) -> storage.Path:
  """Returns the folder of the checkpoints of a job."""
  return working_copy.origin(job_log_dir) / CHECKPOINTS


def steps(directory: storage.Path) -> dict[int, storage.Path]:
  """Returns the complete checkpoints in `directory` by step, oldest first.

  A damaged checkpoint counts: loading it fails. Other files and folders whose
  names are numbers are ignored with a warning.
  """
  if not directory.exists():
    return {}
  entries: list[storage.Path] = sorted(directory.iterdir())
  checkpoints = {
    int(match[1]): path
    for path in entries
    if (match := _NAME.fullmatch(path.name)) and _is_checkpoint(path)
  }
  return dict(sorted(checkpoints.items()))


def is_checkpoint(path: storage.Path) -> bool:
  """Returns whether a path is a checkpoint, not the folder of checkpoints."""
  is_named = path.exists() and _NAME.fullmatch(path.name)
  return bool(is_named) and _is_checkpoint(path)


def staging(final: PathT) -> PathT:
  """Returns the temporary directory in which checkpoint `final` is written."""
  return final.parent / f'{TEMPORARY}{final.name}'


def commit(source: pathlib.Path, final: pathlib.Path) -> None:
  """Renames `source`, a complete file or directory, to `final`, durably.

  A directory must be on the disk already, with all that is in it.
  """
  if source.is_file():
    atomic_file.sync(source)
  source.rename(final)
  atomic_file.sync(final.parent)


def publish(
  source: pathlib.Path,
  final: storage.BucketPath,
  uploaded: Collection[str] = (),
) -> None:
  """Uploads a complete checkpoint, and commits it in the bucket.

  Args:
    source: The file or directory.
    final: Its place, where nothing is committed.
    uploaded: Files of the directory that are at this place already.

  Raises:
    OSError: It cannot be uploaded.
  """
  if source.is_file():
    final.upload(source)
    return
  files = set(storage.files(source)).difference(uploaded)
  storage.upload_tree(source, final, sorted(files))
  (final / storage.MARKER).write_text(_MARKER_TEXT)


def is_committed(path: storage.Path) -> bool:
  """Returns whether a file or folder with a checkpoint's name is complete."""
  if isinstance(path, storage.BucketPath) and path.is_dir():
    return (path / storage.MARKER).exists()
  return path.exists()


def saved_at(path: storage.Path) -> float:
  """Returns when a checkpoint was committed, in seconds since 1970."""
  if isinstance(path, storage.BucketPath) and path.is_dir():
    path /= storage.MARKER
  return path.stat().st_mtime


def sync_files(directory: pathlib.Path, files: Collection[str]) -> None:
  """Flushes files to the disk, and the folders from them up to `directory`.

  One fsync each, all in parallel, because the disk then writes its journal
  once; syncfs is no faster and would wait for the data of all other programs.

  Args:
    directory: The checkpoint.
    files: Paths below the checkpoint.
  """
  names = {'', *files}
  for file in files:
    # Up to a folder that is there with its parents.
    while (file := os.path.dirname(file)) not in names:
      names.add(file)
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    list(pool.map(lambda name: atomic_file.sync(directory / name), names))


def side_folder(directory: storage.Path) -> storage.Path:
  """Returns the folder of the manifest and of the input states.

  Orbax restores every folder of a checkpoint that is not in another one. Where
  the metadata are a folder, as Orbax requires, they contain these, unless an
  older version saved the checkpoint.

  Args:
    directory: The checkpoint, or its staging directory.
  """
  metadata = directory / METADATA_FILE
  is_older = (directory / MANIFEST_FOLDER).exists()
  return directory if is_older or not metadata.is_dir() else metadata


def set_aside_path(path: storage.Path) -> storage.Path:
  """Returns a free path next to `path`, at which a checkpoint is ignored."""
  renamed = path.with_name(f'corrupt_{path.name}')
  count = 1
  while renamed.exists():
    count += 1
    renamed = path.with_name(f'corrupt_{path.name}_{count}')
  return renamed


def move_aside_command(path: storage.Path) -> str:
  """Returns the shell command that renames `path`, so that it is ignored."""
  command = ['mv']
  if isinstance(path, storage.BucketPath):
    command = _MOVE_COMMANDS.get(path.scheme, command)
  return shlex.join([*command, str(path), str(set_aside_path(path))])


def delete(path: storage.Path) -> None:
  """Deletes a checkpoint; renames it first, so that no partial one remains.

  In a bucket its marker is removed first.
  """
  if isinstance(path, storage.BucketPath):
    storage.remove_tree(path)
    return
  expired = path.parent / f'{TEMPORARY}delete_{path.name}'
  discard(expired)
  path.rename(expired)
  discard(expired)


def archive(path: storage.Path, subdir: str) -> None:
  """Moves a checkpoint into a folder next to it, which gets created."""
  folder = path.parent / subdir
  folder.mkdir(exist_ok=True)
  archived = folder / path.name
  if archived.exists():
    # The checkpoint of an earlier run of the same steps.
    delete(archived)
  storage.move(path, archived)


def clean(directory: storage.Path) -> None:
  """Removes what killed processes left: temporary files, parts in buckets."""
  if not directory.exists():
    return
  for path in directory.iterdir():
    is_part = path.name.startswith(TEMPORARY) or (
      path.name.startswith(_PREFIX) and _ORBAX_TMP in path.name
    )
    is_named = path.name.startswith((_PREFIX, FROZEN))
    if isinstance(path, storage.BucketPath) and is_named:
      is_part = not is_committed(path)
    if is_part:
      discard(path)


def discard(path: storage.Path) -> None:
  """Removes a file, a link or a directory tree; warns of what cannot be."""
  if isinstance(path, storage.BucketPath):
    try:
      storage.remove_tree(path)
    except OSError as e:
      logging.warning('Cannot remove all of %s: %s', path, e)
    return
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path, ignore_errors=True)
  else:
    with contextlib.suppress(OSError):
      path.unlink(missing_ok=True)
  if path.exists():
    logging.warning('Cannot remove all of %s', path)


def flatten(tree: Any) -> dict[str, Any]:
  """Returns the leaves of a pytree by name, in the order of `tree.leaves`.

  Raises:
    ValueError: Two leaves have the same name.
  """
  leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
  named = {leaf_name(path): leaf for path, leaf in leaves}
  if len(named) < len(leaves):
    names = [leaf_name(path) for path, _ in leaves]
    duplicate = next(name for name in names if names.count(name) > 1)
    raise ValueError(
      f'two leaves of the train state are both called {duplicate!r}; rename one'
      ' of the variables'
    )
  return named


def unflatten(tree: Any, named: LeafDict) -> Any:
  """Returns `tree` with its leaves replaced by those of `named`."""
  return jax.tree.unflatten(
    jax.tree.structure(tree), [named[name] for name in flatten(tree)]
  )


def leaf_name(path: tuple[Any, ...]) -> str:
  """Returns the name of the leaf at a JAX key path."""
  return ''.join(_key_name(key) for key in path).removeprefix('.')


def _key_name(key: Any) -> str:
  if isinstance(key, jax.tree_util.SequenceKey):
    return f'_{key.idx}'
  if isinstance(key, jax.tree_util.FlattenedIndexKey):
    return f'_{key.key}'
  name = key.name if isinstance(key, jax.tree_util.GetAttrKey) else key.key
  return '.' + str(name).replace('/', '.')


def _is_checkpoint(path: storage.Path) -> bool:
  """Returns whether a path with a checkpoint's name is one, intact or not."""
  step = path.name.removeprefix(_PREFIX)
  is_own_name = step != path.name
  is_folder = path.is_dir()
  if is_folder and isinstance(path, storage.BucketPath):
    # Without its marker it is being written, or was never completed.
    return is_committed(path)
  if is_folder:
    parts = (METADATA_FILE, STATE_FOLDER, MANIFEST_FOLDER)
    if is_own_name or any((path / part).exists() for part in parts):
      return True
  elif is_own_name and step == str(int(step)) or _is_msgpack_map(path):
    return True
  if path.exists():
    _warn_of_stray(path)
  return False


def _is_msgpack_map(path: storage.Path) -> bool:
  try:
    with path.open('rb') as file:
      return bool(_MSGPACK_MAP.match(file.read(2)))
  except OSError:
    return False


@functools.cache
def _warn_of_stray(path: storage.Path) -> None:
  kind = 'folder' if path.is_dir() else 'file'
  logging.warning(
    '%s is ignored: the %s has the name of a checkpoint and is none; move it'
    ' out of this folder',
    path,
    kind,
  )
