# SPDX-License-Identifier: Apache-2.0
"""A run that loses one of its processes, once."""

from __future__ import annotations

import os
import signal

from pax import experiment_registry
from praxis import py_utils
from tests.integration import experiments


class KilledRows(experiments.CountedRows):
  """Kills the process of the last host at one batch."""

  killed_at: int = 12
  # A file that is there when it was done.
  done: str = ''

  def get_next(self) -> py_utils.NestedMap:
    batch = super().get_next()
    is_last = self.infeed_host_index == self.num_infeed_hosts - 1
    is_due = self.done and self._count == self.killed_at
    if is_last and is_due and not os.path.exists(self.done):
      with open(self.done, 'x', encoding='utf-8'):
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


@experiment_registry.register
class TinyKilled(experiments.TinySpmd):
  """One of its processes is killed."""

  INPUT = KilledRows
