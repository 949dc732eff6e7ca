# SPDX-License-Identifier: Apache-2.0
"""The checkpoint of the leaves that no training step changes.

A job saves these leaves once, in `checkpoints/frozen_<step>`, which has the
format of its checkpoints. Each checkpoint names the one with its frozen leaves
(`verification.Metadata`) and has all others; `checkpoint_reader` reads both.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection

from pax import storage
from pax.checkpoints import paths
from pax.checkpoints.types import (
  CheckpointError,
  CorruptCheckpointError,
  LeafDict,
  State,
)

_NAME = re.compile(rf'{paths.FROZEN}\d+(_\d+)?')


@dataclasses.dataclass(frozen=True)
class Split:
  """A state in two parts; each has None for the leaves of the other."""

  # The leaves that a checkpoint has itself.
  own: State
  # Those of the frozen checkpoint, if it must be written; else None.
  frozen: State | None
  # The name of the frozen checkpoint; None if no leaf is frozen.
  name: str | None


class FrozenCheckpoint:
  """The newest frozen checkpoint of a job, and what it may be used for."""

  def __init__(self) -> None:
    self._frozen: frozenset[str] = frozenset()
    self._name: str | None = None
    # The leaves that it has, with the values of the state.
    self._saved: frozenset[str] = frozenset()
    self._is_written = True

  def set_frozen_leaves(self, leaves: Collection[str]) -> None:
    """Sets the leaves that no step changes from now on.

    Args:
      leaves: Names of leaves.
    """
    self._frozen = frozenset(leaves)

  def is_missing(self, leaves: LeafDict) -> bool:
    """Returns whether the next save must write a frozen checkpoint.

    Args:
      leaves: The leaves of the state.
    """
    return not self._frozen & leaves.keys() <= self._saved

  def begin(self, name: str) -> None:
    """Names a new frozen checkpoint, which the next save writes.

    Args:
      name: A free name, that of `free_name` in the first process.
    """
    self._name, self._saved, self._is_written = name, frozenset(), False

  def split(self, state: State) -> Split:
    """Returns the parts of a state that the next save writes.

    Args:
      state: The state.
    """
    leaves = paths.flatten(state)
    frozen = self._frozen & leaves.keys()
    if not frozen:
      return Split(state, None, None)
    # Another leaf may change, and then be frozen again.
    self._saved = frozen
    return Split(
      own=_without(state, leaves, frozen),
      frozen=None
      if self._is_written
      else _without(state, leaves, leaves.keys() - frozen),
      name=self._name,
    )

  def mark_written(self) -> None:
    """Records that the frozen checkpoint is complete."""
    self._is_written = True

  def forget_unwritten(self) -> None:
    """Forgets a frozen checkpoint that could not be written."""
    if not self._is_written:
      self.set_restored(None, ())

  def set_restored(self, name: str | None, leaves: Collection[str]) -> None:
    """Sets the frozen checkpoint of a state that was restored.

    Args:
      name: Its name; None if the state does not have its values.
      leaves: The leaves of the state that come from it.
    """
    self._name, self._saved, self._is_written = name, frozenset(leaves), True


def free_name(directory: storage.Path, step: int) -> str:
  """Returns a name for a new frozen checkpoint.

  Args:
    directory: The folder of the checkpoints.
    step: The step of the first checkpoint that refers to it.
  """
  first = name = f'{paths.FROZEN}{step:08d}'
  count = 1
  while (directory / name).exists():
    count += 1
    name = f'{first}_{count}'
  return name


def find(checkpoint: storage.Path, name: str) -> storage.Path:
  """Returns the frozen checkpoint to which a checkpoint refers.

  It is next to the checkpoint, or one folder higher if this has expired
  (`CheckpointOptions.todelete_subdir`).

  Args:
    checkpoint: The checkpoint.
    name: The name in its metadata.

  Raises:
    CheckpointError: It is not there.
    CorruptCheckpointError: The name is not one of a frozen checkpoint.
  """
  if not _NAME.fullmatch(name):
    raise CorruptCheckpointError(
      f'the metadata of {checkpoint} name {name!r} as its frozen checkpoint'
    )
  for folder in (checkpoint.parent, checkpoint.parent.parent):
    if paths.is_committed(folder / name):
      return folder / name
  raise CheckpointError(
    f'{checkpoint} has only the leaves that training changes; the others are in'
    f' {name}, which must be next to it and is missing: copy or move both'
  )


def remove_unused(directory: storage.Path) -> None:
  """Removes what a job left that was killed before its first checkpoint.

  Frozen checkpoints next to anything else stay: an archived or damaged
  checkpoint may refer to them.

  Args:
    directory: The folder of the checkpoints.
  """
  if not directory.exists():
    return
  entries: list[storage.Path] = list(directory.iterdir())
  if all(_NAME.fullmatch(path.name) for path in entries):
    for path in entries:
      paths.discard(path)


def is_name(name: str) -> bool:
  """Returns whether this is the name of a frozen checkpoint."""
  return _NAME.fullmatch(name) is not None


def _without(state: State, leaves: LeafDict, removed: Collection[str]) -> State:
  return paths.unflatten(
    state, {k: None if k in removed else v for k, v in leaves.items()}
  )
