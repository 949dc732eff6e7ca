# SPDX-License-Identifier: Apache-2.0
"""What drives the programs of a training run, where it is not the usual."""

from __future__ import annotations

import abc
from typing import Any


class BaseExecutor(abc.ABC):
  """Runs the programs of one job; `experiment.executor()` returns one."""

  @abc.abstractmethod
  def setup(self, run: Any) -> None:
    """Takes the job: a `pax.programs.run.Run`, complete.

    It has the task on its devices (`partitioner`), the first state and its
    step, the programs, the training input, and where things are saved and
    written.
    """

  @abc.abstractmethod
  def start(self) -> Any:
    """Runs the job to its end; may return a `pax.programs.run.Outcome`."""
