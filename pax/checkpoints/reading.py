# SPDX-License-Identifier: Apache-2.0
"""Finds checkpoints and reads leaves or pytrees of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax
from absl import logging

from pax.checkpoints import checkpoint_reader, paths, transformations
from pax.checkpoints.formats import manifest
from pax.checkpoints.types import CheckpointError, InputState, State
from pax.files import storage, working_copy

Path = storage.Path

# What folders of Hugging Face have.
_HUGGINGFACE_CONFIG = 'config.json'


def checkpoint_steps(directory: storage.PathLike) -> dict[int, Path]:
  """Returns the complete checkpoints of a directory by step, oldest first.

  Args:
    directory: The directory of the checkpoints or of the job that wrote them.
  """
  directory = working_copy.origin(directory)
  return paths.steps(directory) or paths.steps(directory / paths.CHECKPOINTS)


def find_checkpoint(
  directory: storage.PathLike, step: int | None = None
) -> tuple[int, Path]:
  """Returns (step, path) of the newest checkpoint, or of that of `step`.

  Args:
    directory: The directory of the checkpoints or of the job that wrote them.
    step: The step; None is the newest.

  Raises:
    CheckpointError: There is none.
  """
  path = working_copy.origin(directory)
  available = {} if path.is_file() else checkpoint_steps(directory)
  selected = max(available, default=None) if step is None else step
  if selected not in available:
    raise missing_error(path, step, available)
  return selected, available[selected]


def missing_error(
  path: Path, step: int | None, available: Collection[int]
) -> CheckpointError:
  """Returns the error of a directory without the checkpoint to read.

  Args:
    path: The directory of the checkpoints or of the job that wrote them.
    step: The step; None is the newest.
    available: The steps of its checkpoints.
  """
  of_step = '' if step is None else f' of step {step}'
  advice = ''
  if not available:
    advice = _hint(path) or '; give the directory of a job that has saved one'
  return CheckpointError(
    f'no checkpoint{of_step} in {path}; available steps:'
    f' {list(available) or "none"}{advice}'
  )


def check_directory(directory: storage.PathLike) -> None:
  """Checks that checkpoints may appear in a directory; it need not exist.

  Args:
    directory: The directory of the checkpoints or of the job that writes them.

  Raises:
    CheckpointError: It is a checkpoint itself, or no directory.
  """
  path = working_copy.origin(directory)
  # A job may have the name of a checkpoint.
  has_state = (path / paths.STATE_FOLDER).exists()
  if path.is_file() or (has_state and paths.is_checkpoint(path)):
    raise CheckpointError(
      f'{directory} cannot have checkpoints{_hint(path) or "; it is a file"}'
    )


def _hint(path: Path) -> str:
  """Returns what to give instead of a path without checkpoints, if known."""
  if paths.is_checkpoint(path):
    return f'; it is a checkpoint itself, give the folder {path.parent}'
  if (path / _HUGGINGFACE_CONFIG).exists():
    return f'; a folder of Hugging Face is --init_from=hf:{path}'
  return ''


def read_tree(
  checkpoint: checkpoint_reader.CheckpointReader,
  abstract: State,
  leaf_names: State,
  restore_transformations: Mapping[str, Any] | None = None,
  *,
  is_own: bool = True,
) -> State:
  """Returns a pytree of arrays, placed by the shardings of `abstract`.

  Args:
    checkpoint: The checkpoint.
    abstract: Shapes, dtypes and shardings.
    leaf_names: The name in the checkpoint of each leaf of `abstract`.
    restore_transformations: `task.train.restore_transformations`, built.
    is_own: Whether the checkpoint may be one of the job, which is not
      transformed again.
  """
  names, treedef = jax.tree.flatten(leaf_names)
  wanted = dict(zip(names, jax.tree.leaves(abstract), strict=True))
  restore = transformations.Transformations(
    restore_transformations, is_own=is_own
  )
  leaves = restore.read(checkpoint, wanted)
  return jax.tree.unflatten(treedef, [leaves[name] for name in names])


def leaf_names(tree: State) -> State:
  """Returns `tree` with each leaf replaced by its name in a checkpoint."""
  return jax.tree.unflatten(jax.tree.structure(tree), list(paths.flatten(tree)))


def select_input_state(
  checkpoint: checkpoint_reader.CheckpointReader,
) -> InputState | None:
  """Returns the input state of this process, or the state that all share.

  Raises:
    CheckpointError: Another number of processes saved different states.
    CorruptCheckpointError: Files differ from what was written.
  """
  path, inputs = checkpoint.path, checkpoint.input_states()
  name = manifest.process_name(jax.process_index(), jax.process_count())
  if name in inputs:
    return inputs[name]
  if inputs:
    first, *others = inputs.values()
    if all(other == first for other in others):
      return first
    raise CheckpointError(
      f'{path} has the input states of {len(inputs)} processes, and this job'
      f' has {jax.process_count()}; continue with the same number of processes'
    )
  logging.warning('%s has no input state: the data start over', path)
  return None
