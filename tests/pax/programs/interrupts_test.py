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
