# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The first signal requests to stop, the second stops at once."""

from __future__ import annotations

import os
import signal

import pytest
from jax.experimental import multihost_utils

from pax.programs import preemption


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_first_asks_second_stops(number, capfd):
  before = signal.getsignal(number)
  with preemption.PreemptionHandler() as handler:
    with pytest.raises(preemption.PreemptedBeforeFirstStepError):
      os.kill(os.getpid(), number)
    assert not handler.stop_requested()
    os.kill(os.getpid(), number)
    assert handler.stop_requested()
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), number)
  assert signal.getsignal(number) is before
  assert 'finishing the step' in capfd.readouterr().err


def test_a_pass_over_batches_is_left(capfd):
  class Watchdog:
    beats = 0

    def beat(self):
      self.beats += 1

    def pause(self):
      self.beats = 0

    def close(self):
      self.beats = None

  watchdog = Watchdog()
  with preemption.PreemptionHandler(watchdog, verb='stopping') as handler:
    handler.raise_if_requested(0)
    handler.raise_if_requested(1)
    assert watchdog.beats == 2
    handler.pause_watchdog()
    assert watchdog.beats == 0
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(preemption.PreemptedError):
      handler.raise_if_requested(2)
  assert watchdog.beats is None
  assert 'finishing the step, then stopping' in capfd.readouterr().err


def test_processes_count_steps_and_batches_as_one(monkeypatch):
  """Processes agree on the number of polls, of steps and batches together."""
  asked = []
  monkeypatch.setattr(preemption.jax, 'process_count', lambda: 2)
  monkeypatch.setattr(
    multihost_utils,
    'reached_preemption_sync_point',
    lambda count: asked.append(count) or count == 4,
  )
  handler = preemption.PreemptionHandler()
  assert not handler.stop_requested()
  handler.raise_if_requested(0)
  handler.raise_if_requested(1)
  with pytest.raises(preemption.PreemptedError):
    handler.raise_if_requested(2)
  assert asked == [1, 2, 3, 4]
