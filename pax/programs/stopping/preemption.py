# SPDX-License-Identifier: Apache-2.0
"""Preemption: requests to stop, by signals or the watchdog, that loops poll."""

from __future__ import annotations

import contextlib
import enum
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import jax

from pax import coordination_service, exit_codes, stop_signals
from pax.programs.stopping import ondemand_saves, stop_agreement
from pax.programs.stopping import watchdog as watchdog_lib
from pax.programs.stopping.stop_request import StopRequest

T = TypeVar('T')

_POLL_SECS = 0.1
# How long a process waits for its batch if another process is a step further.
_INPUT_GRACE_SECS = 30.0


class PreemptedError(Exception):
  """A stop was requested; the loop over batches ended before its next batch."""


class _Phase(enum.Enum):
  # Before the first poll: there is nothing to save.
  START = enum.auto()
  # Between the first poll and the end of the job.
  LOOP = enum.auto()
  # The job is done, stopped or failed; its files are closed.
  ENDED = enum.auto()


class PreemptionHandler:
  """As a context manager, turns a signal into a request to stop.

  - Before the first poll a signal ends the program at once: nothing is lost.
    (In a notebook, signals have Python's effect until the first poll.)
  - Later the first signal requests to stop, which `stop_requested` returns. A
    wait for input ends within a second (`raise_if_wait_ends`).
  - The same signal again, a second later or more, ends the program at once with
    128 plus its number. (In a notebook it has Python's effect.)

  With `exits_after_ondemand_save` off, SIGTERM requests to save only, which
  `save_requested` returns.

  All processes of a job stop before the same step or batch, whichever process
  receives the signal (`StopAgreement`). If the input of one process stalls
  while the others wait for it inside of a step, there is no common state that
  could be saved without that batch: the process waits 30 s for it, then all
  processes end with a message; steps after the last checkpoint are lost.
  """

  def __init__(
    self,
    watchdog: watchdog_lib.Watchdog | None = None,
    *,
    request: StopRequest | None = None,
    is_training: bool = True,
    exits_after_ondemand_save: bool = True,
  ) -> None:
    """Does not handle signals yet.

    Args:
      watchdog: Receives a heartbeat at every poll.
      request: The request that the watchdog may set too.
      is_training: Whether the job saves a state, for messages to the user.
      exits_after_ondemand_save: Whether SIGTERM stops the job.
    """
    self._watchdog = watchdog or watchdog_lib.NoopWatchdog()
    self._request = request or StopRequest()
    self._is_training = is_training
    self._phase = _Phase.START
    self._is_saving = False
    self._is_stopped = False
    # Set when the job has ended without an error.
    self._end_code: int | None = None
    self._wait_deadline: float | None = None
    # Decides between a signal in START and the first poll.
    self._lock = threading.Lock()
    self._signals = contextlib.ExitStack()
    self._agreement: stop_agreement.StopAgreement | None = None
    self._saves: ondemand_saves.OnDemandSaves | None = None
    if not exits_after_ondemand_save:
      self._saves = ondemand_saves.OnDemandSaves()
    if jax.process_count() > 1:
      self._agreement = stop_agreement.StopAgreement(
        self._request,
        coordination_service.CoordinationStore('stop'),
        on_agreed=self._print_request,
        end_process=self._end_process,
      )

  def __enter__(self) -> PreemptionHandler:
    if stop_signals.is_installed():
      self._handle_signals()
    return self

  def __exit__(self, *unused: Any) -> None:
    self._phase = _Phase.ENDED
    self._signals.close()
    if self._agreement is not None:
      self._agreement.close()
    if self._saves is not None:
      self._saves.close()
    self._watchdog.close()

  @property
  def exit_code(self) -> int:
    """The exit code of a job that was stopped; DONE if it was not."""
    return self._request.exit_code if self._is_stopped else exit_codes.DONE

  def mark_ended(self, exit_code: int) -> None:
    """Call it when the job has ended: a signal ends the program from now on."""
    self._end_code = exit_code
    self._phase = _Phase.ENDED

  @contextlib.contextmanager
  def watch(self) -> Iterator[None]:
    """Watches for hangs before the first poll, while a batch is read."""
    self._watchdog.beat()
    try:
      yield
    finally:
      self._watchdog.pause()

  def stop_requested(self) -> bool:
    """Returns whether to stop now; call it before every step.

    All processes must call it equally often.
    """
    self._begin_loop()
    self._watchdog.beat()
    self._is_saving = False
    self._wait_deadline = None
    if self._saves is not None:
      self._saves.poll()
    if self._agreement is None:
      is_due = self._request.is_set()
    else:
      is_due = self._agreement.poll()
    self._is_stopped |= is_due
    return is_due

  def save_requested(self) -> bool:
    """Returns whether a signal requests to save now, once per request.

    Call it before every step. It is equal in all processes.
    """
    return self._saves is not None and self._saves.take()

  def raise_if_requested(self, batch_index: int = 0) -> None:
    """Call it before and after a batch is read.

    Raises:
      PreemptedError: A stop was requested.
    """
    del batch_index
    if self.stop_requested():
      raise PreemptedError

  def raise_if_wait_ends(self) -> None:
    """Call it several times a second while the job waits for a batch.

    A call of `raise_if_requested` must follow the wait, before any collective.

    Raises:
      PreemptedError: A stop was requested, and no process needs the batch.
    """
    if not self._request.is_set():
      return
    if self._agreement is None or self._agreement.is_next_poll:
      self._is_stopped = True
      raise PreemptedError
    if self._agreement.is_agreed:
      self._check_wait_deadline(self._agreement)

  def read(self, read: Callable[[], T]) -> T:
    """Returns the result of a function that reads a batch.

    It runs in a daemon thread, which is abandoned if a stop is requested. The
    thread's exception is raised.

    Raises:
      PreemptedError: A stop was requested.
    """
    result: list[Callable[[], T]] = []
    thread = threading.Thread(
      target=lambda: result.append(_outcome(read)), name='read', daemon=True
    )
    thread.start()
    while thread.is_alive():
      thread.join(_POLL_SECS)
      if thread.is_alive():
        self.raise_if_wait_ends()
    batch = result[0]()
    self.raise_if_requested()
    return batch

  def sleep(self, seconds: float) -> None:
    """Sleeps between two polls; a request to stop ends it."""
    self._request.wait(seconds)

  def begin_saving(self) -> None:
    """Call it before saving: no heartbeats are due until the next poll."""
    self._is_saving = True
    self._watchdog.pause()

  def _begin_loop(self) -> None:
    if self._phase is not _Phase.START:
      return
    with self._lock:
      self._phase = _Phase.LOOP
    if not stop_signals.is_installed():
      self._handle_signals()

  def _handle_signals(self) -> None:
    self._signals.enter_context(stop_signals.handling(self._on_signal))

  def _on_signal(self, number: signal.Signals, is_repeated: bool) -> None:
    """Runs in the thread of the signals."""
    name = stop_signals.name_of(number)
    saves = self._saves if number is signal.SIGTERM else None
    if saves is not None and self._phase is not _Phase.ENDED:
      saves.request(name)
      return
    with self._lock:
      if self._phase is _Phase.START and self._agreement is None:
        unit = 'step' if self._is_training else 'batch'
        self._end_process(
          f'{name}: stopped before the first {unit}; nothing was lost'
        )
    if self._phase is _Phase.ENDED:
      # A notebook goes on.
      if stop_signals.is_installed():
        self._stop_after_end(number, is_repeated)
    elif is_repeated:
      lost = (
        'steps after the last checkpoint are lost'
        if self._is_training
        else 'the next start repeats the incomplete outputs'
      )
      stop_signals.end_process(
        stop_signals.exit_code_of(number), f'{name}: stopped at once; {lost}'
      )
    elif self._request.set(name) and self._agreement is None:
      self._print_request()

  def _print_request(self) -> None:
    """Prints the actions between a request and the exit."""
    if self._is_saving:
      activity = 'saving, then stopping'
    elif self._is_training:
      activity = 'finishing the step, then saving'
    else:
      activity = 'finishing the batch, then stopping'
    stop_signals.print_message(
      f'{self._request.reason}: {activity} (repeat to stop at once)'
    )

  def _stop_after_end(self, number: signal.Signals, is_repeated: bool) -> None:
    name = stop_signals.name_of(number)
    if self._end_code is not None:
      text = f'{name}: the job had ended'
      stop_signals.end_process(self._end_code, f'{text}; nothing was lost')
    if is_repeated:
      text = f'{name}: stopped at once, after an error'
      stop_signals.end_process(stop_signals.exit_code_of(number), text)
    stop_signals.print_message(f'{name}: stopping after an error')

  def _check_wait_deadline(self, agreement: stop_agreement.StopAgreement):
    """Ends all processes if the batch that they need does not come."""
    now = time.monotonic()
    if self._wait_deadline is None:
      self._wait_deadline = now + _INPUT_GRACE_SECS
    if now < self._wait_deadline:
      return
    agreement.abandon(
      f'{self._request.reason}: the input of process {jax.process_index()} gave'
      f' no batch within {_INPUT_GRACE_SECS:g} s, which the other processes'
      ' wait for; steps after the last checkpoint are lost'
    )

  def _end_process(
    self, text: str, before_exit: Callable[[], None] = lambda: None
  ) -> NoReturn:
    stop_signals.end_process(self._request.exit_code, text, before_exit)


def _outcome(function: Callable[[], T]) -> Callable[[], T]:
  """Returns a function with the result, or the exception, of another one."""
  try:
    result = function()
  except BaseException as e:
    return functools.partial(_raise, e)
  return lambda: result


def _raise(error: BaseException) -> NoReturn:
  raise error
