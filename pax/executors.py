# SPDX-License-Identifier: Apache-2.0
"""The executor that runs where an experiment names no other."""

from __future__ import annotations

from pax import base_executor
from pax.programs import train
from pax.programs.run import Outcome, Run


class DefaultExecutor(base_executor.BaseExecutor):
  """Trains by the usual loop; a subclass may do something before or after."""

  def setup(self, run: Run) -> None:
    """Takes the job."""
    self._job = run

  def start(self) -> Outcome:
    """Trains to the end; says how that was."""
    return train.train(self._job)
