# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Signals ask once and stop at the second."""

from __future__ import annotations

import os
import signal

import pytest

from pax.programs import interrupts


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_first_asks_second_stops(number, capfd):
  before = signal.getsignal(number)
  with interrupts.Interrupts() as found:
    with pytest.raises(interrupts.StoppedEarlyError):
      os.kill(os.getpid(), number)
    assert not found.requested(0)
    os.kill(os.getpid(), number)
    assert found.requested(1)
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), number)
  assert signal.getsignal(number) is before
  assert 'finishing the step' in capfd.readouterr().err


def test_a_pass_over_batches_is_left(capfd):
  class Watchdog:
    beats = 0

    def beat(self):
      self.beats += 1

    def rest(self):
      self.beats = 0

    def close(self):
      self.beats = None

  watchdog = Watchdog()
  with interrupts.Interrupts(watchdog, verb='stopping') as found:
    found.check_batch(0)
    found.check_batch_while_training(1)
    assert watchdog.beats == 2
    found.rest()
    assert watchdog.beats == 0
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(interrupts.StoppedError):
      found.check_batch(2)
    with pytest.raises(interrupts.StoppedError):
      found.check_batch_while_training(2)
  assert watchdog.beats is None
  assert 'finishing the step, then stopping' in capfd.readouterr().err
