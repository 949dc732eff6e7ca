# SPDX-License-Identifier: Apache-2.0
"""Processes that begin, speak, stop and end together."""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import IO, TextIO

from pax.runner import parent_death

EXIT_PREEMPTED = 75
# How long the others may take when one has failed: they cannot go on.
_GRACE_SECS = 5.0
# How long when one was stopped and saved: they save too.
_SAVING_SECS = 600.0
_SIGNALLED = 128
# What a process wrote last may come after its end.
_READING_SECS = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
  """What one process is started by."""

  # What its lines begin with.
  name: str
  words: Sequence[str]
  # What it finds in its environment beside what is in this one's.
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
  # Whether it stands for a process elsewhere, which its signals do not reach.
  is_remote: bool = False


def run(commands: Sequence[Command], grace_secs: float = _GRACE_SECS) -> int:
  """Runs all and returns the exit code of the first that failed, or 0.

  Signals go to all. When one fails the others get a SIGTERM, and SIGKILL after
  `grace_secs`. When this process is killed they get a SIGTERM too, provided
  that they watch their lifeline.

  Raises:
    OSError: one cannot be started; those that were are ended.
  """
  events: queue.SimpleQueue[_End | int] = queue.SimpleQueue()
  with _signals(events):
    group = _Group(events, grace_secs)
    try:
      for command in commands:
        group.start(command)
    except BaseException:
      group.kill()
      raise
    return group.wait()


@contextlib.contextmanager
def _signals(events: queue.SimpleQueue[_End | int]) -> Iterator[None]:
  """Makes signals events."""

  def handle(number: int, frame: FrameType | None) -> None:
    events.put(number)

  before = {
    number: signal.signal(number, handle)
    for number in (signal.SIGINT, signal.SIGTERM)
  }
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


@dataclasses.dataclass(frozen=True)
class _End:
  """A process ended."""

  name: str
  # As a shell has it.
  code: int


class _Group:
  """Those that were started, until all have ended."""

  def __init__(self, events: queue.SimpleQueue[_End | int], grace_secs: float):
    self._events = events
    self._grace_secs = grace_secs
    self._members: dict[str, _Member] = {}
    self._deadline: float | None = None
    self._was_told = False
    self._code = 0

  def start(self, command: Command) -> None:
    self._members[command.name] = _Member(command, self._events)

  def kill(self) -> None:
    for member in self._members.values():
      member.kill()

  def wait(self) -> int:
    """Returns the exit code when all have ended."""
    while self._members:
      match self._next():
        case None:
          _tell(f'ended the hard way: {", ".join(self._members)}')
          self.kill()
        case _End() as end:
          del self._members[end.name]
          if end.code and not self._code:
            self._fail(end)
        case number:
          self._stop(signal.Signals(number))
    return self._code

  def _next(self) -> _End | int | None:
    """What comes next, or None when the time of the others is over."""
    if self._deadline is None:
      return self._events.get()
    left = self._deadline - time.monotonic()
    try:
      return self._events.get(timeout=max(left, 0))
    except queue.Empty:
      self._deadline = None
      return None

  def _fail(self, end: _End) -> None:
    """One is not done, so that the others cannot be either."""
    self._code = end.code
    saved = end.code == EXIT_PREEMPTED
    secs = max(_SAVING_SECS, self._grace_secs) if saved else self._grace_secs
    self._deadline = time.monotonic() + secs
    left = ', '.join(self._members)
    _tell(f'{end.name} {_why(end.code)}' + f'; ending {left}' * bool(left))
    # A second signal stops at once, without saving.
    if not (saved and self._was_told):
      self._stop(signal.SIGTERM)

  def _stop(self, number: signal.Signals) -> None:
    self._was_told = True
    for member in self._members.values():
      member.stop(number)


class _Member:
  """One process that runs, and the threads that pass on what it says."""

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
      env=os.environ | dict(command.environment) | parent_death.ON_INPUT,
      # Ctrl-C is for this process, which tells the others.
      start_new_session=True,
    )
    self._readers = [
      _begin(_pass_on, source, command.name, sink)
      for source, sink in (
        (self._process.stdout, sys.stdout),
        (self._process.stderr, sys.stderr),
      )
    ]
    _begin(self._wait)

  def stop(self, number: signal.Signals) -> None:
    """Tells it to end, by a signal where one reaches it."""
    if self._command.is_remote:
      # The other end of its lifeline, over the network.
      with contextlib.suppress(OSError):
        self._process.stdin.close()
    else:
      self._process.send_signal(number)

  def kill(self) -> None:
    """Ends it, and what it has started."""
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self._process.pid, signal.SIGKILL)

  def _wait(self) -> None:
    code = self._process.wait()
    for reader in self._readers:
      reader.join(_READING_SECS)
    with contextlib.suppress(OSError):
      self._process.stdin.close()
    code = code if code >= 0 else _SIGNALLED - code
    self._events.put(_End(self._command.name, code))


def _begin(function: Callable[..., None], *args: object) -> threading.Thread:
  thread = threading.Thread(target=function, args=args, daemon=True)
  thread.start()
  return thread


def _pass_on(source: IO[str], name: str, sink: TextIO) -> None:
  """Copies lines, with the name before each."""
  with source:
    for line in source:
      # Whoever reads may have read enough; the process goes on.
      with contextlib.suppress(BrokenPipeError):
        sink.write(f'[{name}] {line.rstrip()}\n')
        sink.flush()


def _why(code: int) -> str:
  """How a process ended, for a person."""
  if code == EXIT_PREEMPTED:
    return 'was stopped, and saved'
  if code > _SIGNALLED and code - _SIGNALLED in set(signal.Signals):
    return f'was ended by {signal.Signals(code - _SIGNALLED).name}'
  return f'failed with exit code {code}'


def _tell(text: str) -> None:
  print(f'pax launch: {text}', file=sys.stderr, flush=True)
