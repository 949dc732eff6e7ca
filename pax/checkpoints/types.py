# SPDX-License-Identifier: Apache-2.0
"""The words of checkpointing: kinds, options, errors, what a restore gives."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

State = Any  # A pytree: of arrays, or of shapes with their shardings.


class CheckpointType(enum.StrEnum):
  """How the state lies on disk."""

  # One directory of TensorStore chunks per leaf; every process writes its own.
  GDA = 'gda'
  # The whole state in one msgpack file, written by process 0.
  FLAX = 'flax'


class CheckpointError(ValueError):
  """A checkpoint that cannot be written or read; the message says why."""


class CorruptCheckpointError(CheckpointError):
  """A checkpoint whose files are not those that were written."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
  """When to save, and how long to keep what was saved."""

  # Steps from one checkpoint to the next.
  save_interval_steps: int = 5000
  # How many of the newest to keep; None keeps all.
  max_to_keep: int | None = 10
  # Seconds; besides the newest, one checkpoint per so long is kept for ever.
  keep_interval_secs: float | None = None
  # Whether to save at all; restoring is always possible.
  saving: bool = True
  # Whether files are written by a thread while training goes on.
  asynchronous: bool = True
  # Seconds that process 0 waits for the other processes' files.
  timeout_secs: float = 600

  def __post_init__(self):
    if self.save_interval_steps < 1:
      raise ValueError(
        'save_interval_steps must be at least 1, got '
        f'{self.save_interval_steps}; to save nothing use '
        '--noenable_checkpoint_saving'
      )


@dataclasses.dataclass(frozen=True)
class Restored:
  """What `Checkpointer.restore` gives."""

  state: State
  # What the input's `get_state` gave; None where it was not saved.
  input_state: dict[str, Any] | None
  step: int
