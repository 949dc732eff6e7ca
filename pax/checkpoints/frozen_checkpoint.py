# SPDX-License-Identifier: Apache-2.0
"""The checkpoint of the leaves that no training step changes.

A job saves these leaves once, in `checkpoints/frozen_<step>_<random digits>`,
which has the format of its checkpoints. Each checkpoint names the one with its
frozen leaves (`verification.Metadata`) and has all others; `checkpoint_reader`
reads both.
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Collection

from absl import logging

from pax.checkpoints import paths
from pax.checkpoints.types import (
  CheckpointError,
  CorruptCheckpointError,
  LeafDict,
  State,
)
from pax.files import storage

_NAME = re.compile(rf'{paths.FROZEN}\d+_[0-9a-f]{{8}}')


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

  def is_used(self, leaves: LeafDict) -> bool:
    """Returns whether some of the leaves of a state are frozen."""
    return not self._frozen.isdisjoint(leaves)

  def name_to_use(
    self, leaves: LeafDict, directory: storage.Path, step: int
  ) -> str:
    """Returns the name of the frozen checkpoint of the next save.

    It is a new name unless the present one has the leaves, and is still there.

    Args:
      leaves: The leaves of the state.
      directory: The folder of the checkpoints.
      step: The step that is saved.
    """
    if self._name is None or not self._frozen & leaves.keys() <= self._saved:
      return _new_name(step)
    if self._is_written and _is_gone(directory, self._name):
      new_name = _new_name(step)
      logging.warning(
        '%s is gone, without which the checkpoints that name it cannot be'
        ' restored; the next ones name %s, with the same variables',
        directory / self._name,
        new_name,
      )
      return new_name
    return self._name

  def use(self, name: str) -> None:
    """Sets the frozen checkpoint of the next save, which writes a new one.

    Args:
      name: That of `name_to_use` in the first process.
    """
    if name != self._name:
      self._name, self._saved, self._is_written = name, frozenset(), False

  def split(self, state: State, leaves: LeafDict) -> Split:
    """Returns the parts of a state that the next save writes.

    Args:
      state: The state, with some frozen leaves.
      leaves: Its leaves.
    """
    frozen = self._frozen & leaves.keys()
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
      f'the metadata of {checkpoint} must name a frozen checkpoint, such as'
      f' {paths.FROZEN}00000000_1a2b3c4d, got {name!r}'
    )
  for folder in (checkpoint.parent, checkpoint.parent.parent):
    if paths.is_committed(folder / name):
      return folder / name
  raise CheckpointError(
    f'{checkpoint} has only the leaves that training changes; the others are in'
    f' {name}, which must be next to it and is missing: copy or move both'
  )


def mark_used(directory: storage.Path, name: str) -> None:
  """Records that a complete checkpoint names a frozen one.

  Args:
    directory: The folder of the checkpoints.
    name: The name of the frozen checkpoint.
  """
  marker = _use_marker(directory / name)
  try:
    if not marker.exists():
      marker.write_text('A checkpoint has named it.\n')
  except OSError as e:
    # The next save tries again.
    logging.warning('Cannot write %s: %s', marker, e)


def remove_unused(directory: storage.Path) -> None:
  """Removes what a job left that was killed before its first checkpoint.

  Frozen checkpoints that another checkpoint has named stay, because that one
  may be elsewhere now. So do those next to anything else.

  Args:
    directory: The folder of the checkpoints.
  """
  if not directory.exists():
    return
  entries: list[storage.Path] = [
    path for path in directory.iterdir() if not path.name.startswith('.')
  ]
  if all(is_name(path.name) for path in entries):
    for path in entries:
      if not _use_marker(path).exists():
        paths.discard(path)


def is_name(name: str) -> bool:
  """Returns whether this is the name of a frozen checkpoint."""
  return _NAME.fullmatch(name) is not None


def _without(state: State, leaves: LeafDict, removed: Collection[str]) -> State:
  return paths.unflatten(
    state, {k: None if k in removed else v for k, v in leaves.items()}
  )


def _new_name(step: int) -> str:
  """Returns a name that no other checkpoint has, in any job.

  A checkpoint that was copied next to those of another job does not find a
  frozen checkpoint of that job under it.
  """
  return f'{paths.FROZEN}{step:08d}_{uuid.uuid4().hex[:8]}'


def _is_gone(directory: storage.Path, name: str) -> bool:
  """Returns whether a checkpoint was removed from a folder that is there."""
  try:
    return directory.exists() and not paths.is_committed(directory / name)
  except OSError:
    # The save reports what is wrong.
    return False


def _use_marker(frozen: storage.Path) -> storage.Path:
  return frozen.with_name(f'.{frozen.name}.used')
