# SPDX-License-Identifier: Apache-2.0
"""Names on disk: checkpoints of a job directory and leaves of a train state.

A checkpoint is written under a temporary name and renamed when it is complete.

The name of a leaf is its key path: `mdl_vars.params.lm.softmax.w`,
`opt_states_0_2.m.params.lm.softmax.w`, `step`. Keys and attributes are joined
by dots, the index of a list by an underscore.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
from typing import Any

import jax

from pax.checkpoints.types import CheckpointType, LeafDict

CHECKPOINTS = 'checkpoints'
METADATA_FILE = 'metadata'
_TMP = 'tmp_'
_NAME = re.compile(r'(?:checkpoint_)?(\d+)')


def checkpoint_name(step: int, kind: CheckpointType) -> str:
  """Returns the file or directory name of the checkpoint of `step`."""
  digits = '' if kind is CheckpointType.FLAX else '08'
  return f'checkpoint_{step:{digits}d}'


def steps(directory: pathlib.Path) -> dict[int, pathlib.Path]:
  """Returns the complete checkpoints in `directory` by step, oldest first."""
  if not directory.exists():
    return {}
  checkpoints = {
    int(match[1]): path
    for path in directory.iterdir()
    if (match := _NAME.fullmatch(path.name))
  }
  return dict(sorted(checkpoints.items()))


def staging(final: pathlib.Path) -> pathlib.Path:
  """Returns the temporary directory in which checkpoint `final` is written."""
  return final.parent / f'{_TMP}{final.name}'


def commit(source: pathlib.Path, final: pathlib.Path) -> None:
  """Renames `source`, a complete file or directory, to `final`, durably."""
  _sync(source)
  source.rename(final)
  _sync(final.parent)


def delete(path: pathlib.Path) -> None:
  """Deletes a checkpoint; renames it first, so that no partial one remains."""
  expired = path.parent / f'{_TMP}delete_{path.name}'
  path.rename(expired)
  discard(expired)


def clean(directory: pathlib.Path) -> None:
  """Removes the temporary files of killed processes."""
  if not directory.exists():
    return
  for path in directory.iterdir():
    if path.name.startswith(_TMP):
      discard(path)


def discard(path: pathlib.Path) -> None:
  """Removes a file or a directory tree; a missing one is no error."""
  if path.is_dir():
    shutil.rmtree(path, ignore_errors=True)
  else:
    path.unlink(missing_ok=True)


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


def _sync(path: pathlib.Path) -> None:
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
