# SPDX-License-Identifier: Apache-2.0
"""A trial of a study: its settings, status and reward."""

from __future__ import annotations

import dataclasses
import enum

from pax.tuning.space import Settings


class Status(enum.StrEnum):
  """Status of a trial."""

  # Started; started again if it was killed.
  RUNNING = 'running'
  # Finished with a reward.
  DONE = 'done'
  # Failed, stopped early or without a reward; algorithms ignore it.
  SKIPPED = 'skipped'


@dataclasses.dataclass(frozen=True)
class Trial:
  """One run of the experiment."""

  # From 1; also the name of its directory.
  id: int
  # Its constants.
  settings: Settings
  status: Status = Status.RUNNING
  # The objective.
  reward: float | None = None
  # The last step with metrics.
  step: int = 0
  # The metrics that the reward was computed from.
  metrics: dict[str, float] = dataclasses.field(default_factory=dict)
  # The reason if it was skipped.
  reason: str = ''
