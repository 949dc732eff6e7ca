# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Requests to stop: by signals, during waits, and of several processes."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from pax import exit_codes, stop_signals
from pax.programs.stopping import preemption
from pax.programs.stopping.stop_request import StopRequest
from tests.testing import polling

_DEADLINE_SECS = 30


@pytest.mark.parametrize('number', stop_signals.SIGNALS)
def test_the_first_signal_requests_a_stop(number, capfd):
  before = signal.getsignal(number)
  with preemption.PreemptionHandler() as handler:
    assert signal.getsignal(number) is before
    assert not handler.stop_requested()
    os.kill(os.getpid(), number)
    polling.wait_until(handler.stop_requested)
    polling.wait_until(lambda: handler.exit_code == exit_codes.PREEMPTED)
  assert signal.getsignal(number) is before
  name = stop_signals.name_of(number)
  err = capfd.readouterr().err
  assert err == (
    f'pax: {name}: finishing the step, then saving (repeat to stop at once)\n'
  )


def test_a_repeated_signal_has_its_previous_effect(monkeypatch):
  """In a notebook; a program ends (tests/faults)."""
  with preemption.PreemptionHandler() as handler:
    assert not handler.stop_requested()
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    polling.wait_until(handler.stop_requested)
    monkeypatch.setattr(stop_signals, 'REPEAT_SECS', 0)
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)


def test_before_the_first_poll_a_notebook_keeps_its_handlers():
  with preemption.PreemptionHandler():
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)


def test_a_job_in_another_thread_leaves_the_signals_alone():
  requested = []

  def run():
    with preemption.PreemptionHandler() as handler:
      requested.append(handler.stop_requested())

  before = [signal.getsignal(number) for number in stop_signals.SIGNALS]
  thread = threading.Thread(target=run)
  thread.start()
  thread.join()
  assert requested == [False]
  after = [signal.getsignal(number) for number in stop_signals.SIGNALS]
  assert after == before


def test_polls_are_heartbeats():
  class Watchdog:
    beats = 0

    def beat(self):
      self.beats += 1

    def pause(self):
      self.beats = 0

    def close(self):
      self.beats = None

  watchdog, request = Watchdog(), StopRequest()
  with preemption.PreemptionHandler(
    watchdog, request=request, is_training=False
  ) as handler:
    handler.raise_if_requested(0)
    handler.raise_if_requested(1)
    assert watchdog.beats == 2
    handler.begin_saving()
    assert watchdog.beats == 0
    request.set('hang', exit_codes.HANG)
    with pytest.raises(preemption.PreemptedError):
      handler.raise_if_requested(2)
  assert watchdog.beats is None
  assert handler.exit_code == exit_codes.HANG


def test_a_request_ends_the_wait_for_a_batch():
  request, waits = StopRequest(), threading.Event()
  released = threading.Event()

  def read():
    waits.set()
    released.wait(_DEADLINE_SECS)

  def stop():
    waits.wait(_DEADLINE_SECS)
    request.set('SIGTERM')

  threading.Thread(target=stop).start()
  with preemption.PreemptionHandler(request=request) as handler:
    assert handler.read(lambda: 7) == 7
    with pytest.raises(StopIteration):
      handler.read(lambda: next(iter(())))
    with pytest.raises(preemption.PreemptedError):
      handler.read(read)
    assert handler.exit_code == exit_codes.PREEMPTED
  released.set()


def test_a_request_after_the_last_poll_does_not_change_the_exit_code():
  request = StopRequest()
  with preemption.PreemptionHandler(request=request) as handler:
    assert not handler.stop_requested()
    request.set('SIGTERM')
  assert handler.exit_code == exit_codes.DONE
