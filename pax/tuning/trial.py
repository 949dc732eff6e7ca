# SPDX-License-Identifier: Apache-2.0
"""What a study knows of one of its trials."""

from __future__ import annotations

import dataclasses
import enum

from pax.tuning.space import Settings


class Status(enum.StrEnum):
  """How far a trial is."""

  # It has begun; what was killed is run again.
  RUNNING = 'running'
  # It has a reward.
  DONE = 'done'
  # It failed, was stopped early or has no reward: nothing is learned from it.
  SKIPPED = 'skipped'


@dataclasses.dataclass(frozen=True)
class Trial:
  """One run of the experiment."""

  # From 1; the name of its directory.
  id: int
  # The constants it runs with.
  settings: Settings
  # How far it is.
  status: Status = Status.RUNNING
  # What the search maximizes.
  reward: float | None = None
  # The last step that was measured.
  step: int = 0
  # What the reward was computed from.
  metrics: dict[str, float] = dataclasses.field(default_factory=dict)
  # Why it was skipped.
  reason: str = ''
