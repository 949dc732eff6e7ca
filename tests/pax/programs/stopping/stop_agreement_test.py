# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Processes agree on the poll at which all of them stop."""

from __future__ import annotations

import threading

import pytest

from pax.programs.stopping import stop_agreement
from pax.programs.stopping.stop_request import StopRequest
from tests.testing import polling
from tests.testing.coordination_store import Server, Store

_DEADLINE_SECS = 30


class Process:
  """A process of a job, without its steps."""

  def __init__(self, server, process):
    self.request = StopRequest()
    self.ends = []
    self.notices = []
    self.agreement = stop_agreement.StopAgreement(
      self.request,
      Store(server, process),
      on_agreed=lambda: self.notices.append(self.request.reason),
      end_process=self._end,
    )

  def _end(self, text, before_exit):
    before_exit()
    self.ends.append(text)


@pytest.fixture
def processes(monkeypatch):
  monkeypatch.setattr(stop_agreement, '_READ_SECS', 0.05)
  monkeypatch.setattr(stop_agreement, '_LINGER_SECS', 0)
  server = Server(2)
  made = [Process(server, i) for i in range(2)]
  yield made
  for process in made:
    process.agreement.close()


def test_all_stop_at_the_poll_after_the_highest(processes):
  first, second = (p.agreement for p in processes)
  assert not any(first.poll() for _ in range(3))
  assert not any(second.poll() for _ in range(5))
  processes[0].request.set('SIGTERM')
  polling.wait_until(lambda: first.is_agreed and second.is_agreed)
  assert processes[1].request.reason == 'SIGTERM in process 0'
  assert [p.notices for p in processes] == [
    ['SIGTERM'],
    ['SIGTERM in process 0'],
  ]
  assert [first.poll() for _ in range(3)] == [False, False, True]
  assert second.poll()


def test_waits_end_if_all_processes_wait_for_the_same_batch(processes):
  first, second = (p.agreement for p in processes)
  first.poll()
  second.poll()
  assert not first.is_next_poll
  processes[1].request.set('SIGTERM')
  polling.wait_until(lambda: first.is_next_poll and second.is_next_poll)


def test_a_process_that_others_wait_for_needs_its_batch(processes):
  first, second = (p.agreement for p in processes)
  first.poll()
  second.poll()
  second.poll()
  processes[1].request.set('SIGTERM')
  polling.wait_until(lambda: first.is_agreed and second.is_next_poll)
  assert not first.is_next_poll
  thread = threading.Thread(target=first.abandon, args=('no batch',))
  thread.start()
  polling.wait_until(lambda: all(p.ends for p in processes))
  thread.join()
  assert [p.ends[0] for p in processes] == ['no batch', 'no batch']


def test_all_end_at_once_if_one_has_not_begun(processes):
  processes[0].agreement.poll()
  processes[0].request.set('SIGTERM')
  polling.wait_until(lambda: all(p.ends for p in processes))
  texts = [p.ends[0] for p in processes]
  end = ': stopped before the first step; nothing was lost'
  assert texts == [f'SIGTERM{end}', f'SIGTERM in process 0{end}']


def test_a_process_that_is_gone_blocks_no_other(monkeypatch):
  """The poll continues; the coordination service reports the loss."""
  monkeypatch.setattr(stop_agreement, '_BARRIER_SECS', 0.1)
  monkeypatch.setattr(stop_agreement, '_LEAVE_SECS', 0.1)
  monkeypatch.setattr(stop_agreement, '_LINGER_SECS', 0)
  process = Process(Server(2), 0)
  assert not process.agreement.poll()
  process.request.set('SIGTERM')
  process.agreement._thread.join(_DEADLINE_SECS)
  assert not process.agreement.poll()
  process.agreement.close()
  assert not process.ends
