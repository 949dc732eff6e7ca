# SPDX-License-Identifier: Apache-2.0
"""Formats, options with the retention policy, and errors of checkpoints."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from absl import logging

# A pytree of arrays, or of jax.ShapeDtypeStruct with their shardings.
State = Any
# What `BaseInput.get_state` returns: values of JSON and bytes.
InputState = dict[str, Any] | bytes
# Leaves of a state by leaf name (`paths.flatten`).
LeafDict = Mapping[str, Any]
# Shape and dtype name of leaves by leaf name.
Shapes = Mapping[str, tuple[tuple[int, ...], str]]

_SECONDS = {'s': 1, 'm': 60, 'h': 3600, 'd': 86400}


class CheckpointType(enum.StrEnum):
  """On-disk format of the state.

  UNSPECIFIED and PERSISTENCE exist for paxml; nothing is saved as these.
  """

  UNSPECIFIED = 'unspecified'
  # The full state in one msgpack file, written by process 0.
  FLAX = 'flax'
  # TensorStore arrays; each process writes its own chunks.
  GDA = 'gda'
  PERSISTENCE = 'persistence'


class CheckpointError(ValueError):
  """A checkpoint cannot be written or read."""


class CheckpointTimeoutError(CheckpointError):
  """A checkpoint is not written because the file system hangs."""


class CorruptCheckpointError(CheckpointError):
  """The files of a checkpoint differ from those that were written."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
  """When checkpoints are saved, how, and which of them are kept."""

  # Steps between checkpoints.
  save_interval_steps: int = 5000
  # Number of newest checkpoints to keep; None keeps all.
  max_to_keep: int | None = 10
  # Seconds. Of the older checkpoints one per interval is kept; None keeps none.
  keep_interval_secs: float | None = None
  # Whether the checkpoint of a step never expires; None expires all.
  should_keep: Callable[[int], bool] | None = None
  # Returns the steps that stay, from the time of saving in seconds by step, in
  # place of the three options above.
  preserve: Callable[[Mapping[int, float]], Collection[int]] | None = None
  # Folder below that of the checkpoints to which expired ones are renamed; None
  # deletes them.
  todelete_subdir: str | None = None
  # Whether a corrupt newest checkpoint is renamed and the one before restored;
  # otherwise it is an error.
  skips_corrupt: bool = False
  # Whether, where a mesh has replicas of the state in several processes, only
  # those of the first read a checkpoint and send it to the others.
  single_replica_restore: bool = False
  # Whether checkpoints are saved; restoring is always possible.
  saving: bool = True
  # Whether a thread writes the files while training continues.
  asynchronous: bool = True
  # Whether a state of type GDA becomes a database that Orbax writes (OCDBT);
  # otherwise each array becomes a TensorStore directory.
  use_ocdbt: bool = True
  # Seconds that a process waits for the others at each barrier, and that a save
  # may take without a change of its files. `read_deadline` limits restores.
  timeout_secs: float = 600

  def __post_init__(self):
    _check_count(
      'save_interval_steps',
      self.save_interval_steps,
      'to save nothing use --noenable_checkpoint_saving',
    )
    if self.max_to_keep is not None:
      # With 0 the checkpoint that was just written would be deleted.
      _check_count('save_max_to_keep', self.max_to_keep, 'None keeps all')
    if self.keep_interval_secs is not None:
      _check_seconds(
        'save_keep_interval_duration',
        self.keep_interval_secs,
        "use a duration such as '12h', or None to keep only the newest",
      )
    if self.todelete_subdir is not None:
      _check_subdir(self.todelete_subdir)
    _check_seconds(
      'async_timeout_secs',
      self.timeout_secs,
      'it limits the wait for the slowest process',
    )

  def steps_to_delete(
    self, saved_at: Mapping[int, float], pinned: Collection[int] = ()
  ) -> list[int]:
    """Returns the steps whose checkpoints expire, oldest first.

    The newest `max_to_keep` stay, and those of `should_keep`. Of the older ones
    the first stays, and then each that was saved at least `keep_interval_secs`
    after the last that stays, or as long before it, because the clock may have
    been wrong. With `preserve` the newest stays, and those it returns.

    Args:
      saved_at: Time of saving in seconds by step.
      pinned: Steps that stay in any case and do not count as one of the others.
    """
    if self.preserve:
      kept = {*self.preserve(saved_at), *pinned, max(saved_at, default=0)}
      return sorted(saved_at.keys() - kept)
    if self.max_to_keep is None:
      return []
    steps = sorted(saved_at.keys() - set(pinned))
    expired = self._expired_by_time(steps[: -int(self.max_to_keep)], saved_at)
    return [
      x for x in expired if not (self.should_keep and self.should_keep(x))
    ]

  def _expired_by_time(
    self, steps: Sequence[int], saved_at: Mapping[int, float]
  ) -> list[int]:
    interval = self.keep_interval_secs
    expired, last_kept = [], float('-inf')
    for step in steps:
      if interval and abs(saved_at[step] - last_kept) >= interval:
        last_kept = saved_at[step]
      else:
        expired.append(step)
    return expired


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobFunctions:
  """Functions of a job that its checkpointer calls."""

  # In the writing thread before each checkpoint, to flush the summaries of
  # earlier steps.
  before_write: Callable[[], None] = lambda: None
  # In any thread, with a line about a checkpoint that is restored or saved.
  print_line: Callable[[str], None] = logging.info
  # Ends the process, with a text as reason, if a save hangs and no method of
  # the checkpointer is called any more.
  end_process: Callable[[str], None] | None = None


@dataclasses.dataclass(frozen=True)
class Restored:
  """Result of `Checkpointer.restore`."""

  state: State
  # State of the training input; None if the checkpoint has none.
  input_state: InputState | None
  step: int


def parse_duration(text: str | None) -> float | None:
  """Returns the seconds of a duration such as '90s', '30m', '12h' or '1d'.

  A number without a unit is seconds.

  Raises:
    ValueError: The text is not a duration.
  """
  if not text:
    return None
  match = re.fullmatch(r'(\d+(?:\.\d+)?)\s*([smhd]?)', text.strip())
  if not match:
    raise ValueError(
      'save_keep_interval_duration must be a number of seconds, or one with s,'
      f" m, h or d, as in '12h'; got {text!r}"
    )
  return float(match[1]) * _SECONDS[match[2] or 's']


def _check_count(name: str, value: Any, advice: str) -> None:
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  if not (is_number and value >= 1 and value % 1 == 0):
    raise ValueError(
      f'{name} must be an integer of at least 1, got {value!r}; {advice}'
    )


def _check_seconds(name: str, value: Any, advice: str) -> None:
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  if not (is_number and 0 < value < float('inf')):
    raise ValueError(
      f'{name} must be a positive number of seconds, got {value!r}; {advice}'
    )


def _check_subdir(name: str) -> None:
  # A name with digits could be that of a checkpoint, `tmp_` is deleted.
  if not re.fullmatch(r'(?!tmp_|\d|checkpoint_|frozen_)[\w-][\w.-]*', name):
    raise ValueError(
      'todelete_subdir must be the name of a folder, without /, that does not'
      ' begin with a digit, tmp_, checkpoint_ or frozen_, such as'
      f" 'archive'; got {name!r}"
    )
