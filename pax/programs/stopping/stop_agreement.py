# SPDX-License-Identifier: Apache-2.0
"""Agreement of the processes of a job on where to stop, or to save.

A signal may reach one process only, at a moment when the processes are at
different steps. Each process counts its polls, one before and one after each
batch is read. On a request each publishes its count in JAX's key-value store;
the job stops at the poll after the highest one, which every process will reach.

Like JAX's preemption service (`reached_preemption_sync_point`), but it knows
processes that have not begun, and those that wait for input: if all wait for
the same batch, the agreed poll is the one after the wait, which then ends.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence

from absl import logging

from pax import coordination_service
from pax.programs.stopping.stop_request import StopRequest

# A process that has not polled yet.
_NOT_BEGUN = 0
_POLL_SECS = 0.1
# Seconds between reads of the store, plus this much per process: one server
# answers all of them.
_READ_SECS = 0.5
_READ_SECS_PER_PROCESS = 0.002
_BARRIER_SECS = 30.0
# Time for the others to learn that the job ends; process 0 serves the store.
_LEAVE_SECS = 5.0
_LINGER_SECS = 0.5
_CLOSE_SECS = 2.0

# Ends this process with a message, after a call of the given function.
EndProcess = Callable[[str, Callable[[], None]], None]


class PollAgreement:
  """Agrees with the other processes on the poll at which all act, once."""

  def __init__(
    self,
    request: StopRequest,
    store: coordination_service.KeyValueStore,
    *,
    on_agreed: Callable[[], None],
  ):
    """Starts the thread that reads and answers requests.

    Args:
      request: the request of this process; receives those of the others.
      store: shared by the processes.
      on_agreed: called when the processes know the poll.
    """
    self._request = request
    self._store = store
    self._on_agreed = on_agreed
    self._condition = threading.Condition()
    self._num_polls = _NOT_BEGUN
    self._is_frozen = False
    self._agreed_poll: int | None = None
    self._closed = threading.Event()
    self._thread = threading.Thread(
      target=self._run, name='stop agreement', daemon=True
    )
    self._thread.start()

  def poll(self) -> bool:
    """Counts a poll; returns whether all processes act at this one."""
    with self._condition:
      # The published count must not grow until the others have read it.
      self._condition.wait_for(lambda: not self._is_frozen)
      self._num_polls += 1
      poll = self._agreed_poll
      return poll is not None and self._num_polls >= poll

  def close(self) -> None:
    """Stops answering."""
    self._closed.set()
    # The thread may wait for a process that has ended.
    self._thread.join(_CLOSE_SECS)

  def _run(self) -> None:
    """Runs in the thread."""
    try:
      if self._wait_for_request():
        self._agree()
        self._wait_after_agreement()
    except Exception as e:
      # A process is gone, or this one ends.
      if not self._closed.is_set():
        logging.warning('The processes do not agree where to stop: %s', e)
      with self._condition:
        self._is_frozen = False
        self._condition.notify_all()

  def _wait_for_request(self) -> bool:
    """Returns whether a process requested to stop before `close`."""
    next_read = 0.0
    while not self._closed.wait(_POLL_SECS):
      if self._request.is_set():
        request = {
          'process': self._store.process,
          'reason': self._request.reason,
          'exit_code': self._request.exit_code,
        }
        self._store.write('request/json', json.dumps(request))
        return True
      if time.monotonic() < next_read:
        continue
      next_read = time.monotonic() + self._read_secs
      if values := self._store.read('request'):
        request = json.loads(values[0])
        self._request.set(
          f'{request["reason"]} in process {request["process"]}',
          request['exit_code'],
        )
        return True
    return False

  def _agree(self) -> None:
    with self._condition:
      self._is_frozen = True
      num_polls = self._num_polls
    self._store.write(f'polls/{self._store.process}', str(num_polls))
    try:
      self._store.wait_at_barrier('agree', _BARRIER_SECS)
    except Exception:
      self._check_begun([num_polls])
      raise
    counts = [int(value) for value in self._store.read('polls')]
    self._check_begun(counts)
    self._on_agreed()
    with self._condition:
      self._agreed_poll = max(counts) + 1
      self._is_frozen = False
      self._condition.notify_all()

  def _check_begun(self, counts: Sequence[int]) -> None:
    """Handles the numbers of polls before the agreement."""

  def _wait_after_agreement(self) -> None:
    """Runs in the thread until `close`."""

  @property
  def _read_secs(self) -> float:
    return _READ_SECS + _READ_SECS_PER_PROCESS * self._store.num_processes


class StopAgreement(PollAgreement):
  """Agrees with the other processes on the poll at which all stop."""

  def __init__(
    self,
    request: StopRequest,
    store: coordination_service.KeyValueStore,
    *,
    on_agreed: Callable[[], None],
    end_process: EndProcess,
  ):
    """Starts the thread that reads and answers requests.

    Args:
      request: the request of this process; receives those of the others.
      store: shared by the processes.
      on_agreed: called when the processes know where to stop.
      end_process: called in place of a stop if one process has not begun: no
        step can have been completed; and if `abandon` was called.
    """
    self._end_process = end_process
    super().__init__(request, store, on_agreed=on_agreed)

  @property
  def is_agreed(self) -> bool:
    """Whether the poll of the stop is known."""
    return self._agreed_poll is not None

  @property
  def is_next_poll(self) -> bool:
    """Whether all processes stop at the next poll: no one is further."""
    return self._agreed_poll == self._num_polls + 1

  def abandon(self, text: str) -> None:
    """Ends all processes without a common step; the text is the reason."""
    self._store.write('abandoned/text', text)
    self._end_process(text, self._leave)

  def _check_begun(self, counts: Sequence[int]) -> None:
    if min(counts) == _NOT_BEGUN:
      text = f'{self._request.reason}: stopped before the first step'
      self._end_process(f'{text}; nothing was lost', self._leave)

  def _wait_after_agreement(self) -> None:
    while not self._closed.wait(self._read_secs):
      if values := self._store.read('abandoned'):
        self._end_process(values[0], self._leave)

  def _leave(self) -> None:
    """Waits until all processes know that they end."""
    try:
      self._store.wait_at_barrier('leave', _LEAVE_SECS)
    except Exception as e:
      logging.warning('A process does not end: %s', e)
    if self._store.process == 0:
      time.sleep(_LINGER_SECS)
