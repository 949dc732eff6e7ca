# SPDX-License-Identifier: Apache-2.0
"""Runs a group of processes: merged output, common signals, common end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TextIO

from pax import exit_codes, stop_signals
from pax.runner import parent_death

# Time for the others to end after a failure: they cannot continue.
_GRACE_SECS = 5.0
# Time for the others to end after a preemption: they save.
_SAVING_SECS = 600.0
_SIGNAL_OFFSET = 128
# Time to read the last output of a process that has ended.
_READING_SECS = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
  """The command of one process."""

  # Prefix of its lines.
  name: str
  words: Sequence[str]
  # Variables in addition to those of this process.
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
  # Whether it is an ssh client, whose signals do not reach the remote process.
  is_remote: bool = False


def run(commands: Sequence[Command], grace_secs: float = _GRACE_SECS) -> int:
  """Runs all; returns the exit code of the first that failed, or 0.

  A process that ends because it lost another (PEER_LOST) is not the first: the
  cause is awaited for `grace_secs`.

  Forwards SIGINT, SIGTERM and SIGHUP to all. If one fails, the others get
  SIGTERM, and SIGKILL after `grace_secs`; also if this process is killed,
  provided that they call `parent_death.watch`.

  Raises:
    OSError: one cannot be started; the others are killed.
  """
  events: queue.SimpleQueue[_End | int] = queue.SimpleQueue()
  with stop_signals.handling(lambda number, _: events.put(number)):
    group = _Group(events, grace_secs)
    try:
      for command in commands:
        group.start(command)
    except BaseException:
      group.kill()
      raise
    return group.wait()


@dataclasses.dataclass(frozen=True)
class _End:
  """The end of a process."""

  name: str
  # As in a shell: 128 plus the signal.
  code: int


class _Group:
  """The processes that run."""

  def __init__(self, events: queue.SimpleQueue[_End | int], grace_secs: float):
    self._events = events
    self._grace_secs = grace_secs
    self._members: dict[str, _Member] = {}
    self._deadline: float | None = None
    self._is_stopping = False
    # Only ends with PEER_LOST so far.
    self._is_awaiting_cause = False
    self._code = 0

  def start(self, command: Command) -> None:
    self._members[command.name] = _Member(command, self._events)

  def kill(self) -> None:
    for member in self._members.values():
      member.kill()

  def wait(self) -> int:
    """Waits until all have ended; returns the exit code."""
    while self._members:
      match self._next():
        case None if self._is_awaiting_cause:
          self._end_others()
        case None:
          _print(f'killed {", ".join(self._members)}')
          self.kill()
        case _End() as end:
          del self._members[end.name]
          if end.code and (not self._code or self._is_awaiting_cause):
            self._fail(end)
        case number:
          self._stop(signal.Signals(number))
    return self._code

  def _next(self) -> _End | int | None:
    """The next event, or None at the deadline of the remaining processes."""
    if self._deadline is None:
      return self._events.get()
    seconds = self._deadline - time.monotonic()
    try:
      return self._events.get(timeout=max(seconds, 0))
    except queue.Empty:
      self._deadline = None
      return None

  def _fail(self, end: _End) -> None:
    """Ends the other processes after one has failed."""
    self._code = end.code
    if end.code == exit_codes.PEER_LOST:
      if not self._is_awaiting_cause:
        self._is_awaiting_cause = True
        self._deadline = time.monotonic() + self._grace_secs
      _print(f'{end.name} {_reason(end.code)}')
      return
    self._is_awaiting_cause = False
    is_saved = end.code == exit_codes.PREEMPTED
    secs = max(_SAVING_SECS, self._grace_secs) if is_saved else self._grace_secs
    self._deadline = time.monotonic() + secs
    others = ', '.join(self._members)
    _print(
      f'{end.name} {_reason(end.code)}' + f'; ending {others}' * bool(others)
    )
    # A second signal would stop them without saving.
    if not (is_saved and self._is_stopping):
      self._stop(signal.SIGTERM)

  def _end_others(self) -> None:
    """Ends processes that have not noticed a loss which others reported."""
    self._is_awaiting_cause = False
    self._deadline = time.monotonic() + self._grace_secs
    _print(f'ending {", ".join(self._members)}')
    self._stop(signal.SIGTERM)

  def _stop(self, number: signal.Signals) -> None:
    self._is_stopping = True
    for member in self._members.values():
      member.stop(number)


class _Member:
  """A running process, and the threads that forward its output."""

  def __init__(self, command: Command, events: queue.SimpleQueue[_End | int]):
    self._command = command
    self._events = events
    self._process = subprocess.Popen(
      command.words,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      errors='replace',
      env={
        **os.environ,
        **command.environment,
        **parent_death.ON_INPUT,
      },
      # Ctrl-C reaches this process only, which forwards it.
      start_new_session=True,
    )
    self._readers = [
      _start_thread(_forward_lines, source, command.name, sink)
      for source, sink in (
        (self._process.stdout, sys.stdout),
        (self._process.stderr, sys.stderr),
      )
    ]
    _start_thread(self._wait)

  def stop(self, number: signal.Signals) -> None:
    """Ends it by a signal; a remote one by closing its input."""
    if self._command.is_remote:
      # The remote process watches its input (parent_death).
      self._close_input()
    else:
      self._process.send_signal(number)

  def kill(self) -> None:
    """Kills it and its children."""
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self._process.pid, signal.SIGKILL)

  def _close_input(self) -> None:
    if self._process.stdin is not None:
      with contextlib.suppress(OSError):
        self._process.stdin.close()

  def _wait(self) -> None:
    code = self._process.wait()
    for reader in self._readers:
      reader.join(_READING_SECS)
    self._close_input()
    code = code if code >= 0 else _SIGNAL_OFFSET - code
    self._events.put(_End(self._command.name, code))


def _start_thread(
  function: Callable[..., None], *args: object
) -> threading.Thread:
  thread = threading.Thread(target=function, args=args, daemon=True)
  thread.start()
  return thread


def _forward_lines(source: IO[str], name: str, sink: TextIO) -> None:
  """Copies lines with the name as a prefix."""
  with source:
    for line in source:
      # The reader may have exited, or the terminal; the process continues.
      with contextlib.suppress(OSError):
        sink.write(f'[{name}] {line.rstrip()}\n')
        sink.flush()


def _reason(code: int) -> str:
  """How a process ended, for messages."""
  if code == exit_codes.PREEMPTED:
    return 'was stopped by a signal'
  if code == exit_codes.PEER_LOST:
    return 'has lost another process'
  if code > _SIGNAL_OFFSET and code - _SIGNAL_OFFSET in set(signal.Signals):
    return f'was ended by {signal.Signals(code - _SIGNAL_OFFSET).name}'
  return f'failed with exit code {code}'


def _print(text: str) -> None:
  print(f'pax launch: {text}', file=sys.stderr, flush=True)
