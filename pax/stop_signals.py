# SPDX-License-Identifier: Apache-2.0
"""SIGTERM, SIGINT and SIGHUP: a thread acts on them, not the signal handler.

Python runs a signal handler in the main thread between two bytecodes: not while
the thread compiles or waits for a device, and an exception that the handler
raises is lost if it interrupts a destructor or a callback of C++. Therefore the
handlers of a program do nothing. The interpreter also writes the number of each
signal to a pipe (`signal.set_wakeup_fd`), which a daemon thread reads.

Uses the standard library only, so that a program installs it first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from pax import exit_codes

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Receives the signal and whether it is repeated.
OnSignal = Callable[[signal.Signals, bool], None]

# The same signal again after this time means: stop at once. Earlier ones have
# the same cause: systemd and ssh send two, a user may press Ctrl-C twice.
REPEAT_SECS = 1.0
_ERASE_LINE = '\r\x1b[2K'
_FLUSH_SECS = 1.0


def name_of(number: int) -> str:
  """Returns the name of a signal for messages."""
  if number == signal.SIGINT:
    return 'Ctrl-C'
  return signal.Signals(number).name


def exit_code_of(number: int) -> int:
  """Returns the exit code of a program that a signal ended at once."""
  return exit_codes.SIGNAL_OFFSET + number


def stop_at_start(number: signal.Signals, is_repeated: bool) -> NoReturn:
  """Ends a program that has not done anything that it could lose."""
  del is_repeated
  end_process(
    exit_codes.PREEMPTED,
    f'{name_of(number)}: stopped before the first step; nothing was lost',
  )


def stop_tool(number: signal.Signals, is_repeated: bool) -> NoReturn:
  """Ends a program that has nothing to continue."""
  del is_repeated
  end_process(exit_code_of(number), f'stopped by {name_of(number)}')


class _RepeatDetector:
  """Distinguishes a repeated signal from several with the same cause."""

  def __init__(self) -> None:
    self._first: dict[int, float] = {}

  def is_repeated(self, number: int) -> bool:
    now = time.monotonic()
    return now - self._first.setdefault(number, now) >= REPEAT_SECS


class _Receiver:
  """Calls a function for each signal in a thread.

  Ignored signals stay ignored, such as SIGHUP under nohup.
  """

  def __init__(self, on_signal: OnSignal):
    self.on_signal = on_signal
    self._read, self._write = os.pipe()
    os.set_blocking(self._write, False)
    self._repeats = _RepeatDetector()
    self._previous: dict[int, Any] = {}
    # Writes to a terminal that is gone would fail while the job saves.
    self._terminals = [fd for fd in (1, 2) if _is_terminal(fd)]
    self._thread = threading.Thread(
      target=self._run, name='signals', daemon=True
    )
    self._thread.start()

  def install_for_program(self) -> None:
    """Takes the signals of this process until it ends."""
    signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
    self._install(lambda number, frame: None)

  def install_for_job(self) -> None:
    """Takes the signals until `close`; repeated ones have their old effect."""
    repeats = _RepeatDetector()

    def handle(number: int, frame: FrameType | None) -> None:
      if not repeats.is_repeated(number):
        os.write(self._write, bytes([number]))
      elif callable(previous := self._previous[number]):
        previous(number, frame)
      else:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    self._install(handle)

  def restore_handlers(self) -> None:
    """Installs the handlers from before."""
    for number, handler in self._previous.items():
      signal.signal(number, handler)

  def close(self) -> None:
    """Restores the handlers and ends the thread."""
    self.restore_handlers()
    os.close(self._write)
    self._thread.join()
    os.close(self._read)

  def _install(self, handler: Callable[[int, FrameType | None], None]) -> None:
    for number in SIGNALS:
      if signal.getsignal(number) not in (signal.SIG_IGN, None):
        self._previous[number] = signal.signal(number, handler)

  def _run(self) -> None:
    """Runs in the thread."""
    while numbers := os.read(self._read, 64):
      for number in numbers:
        if number in SIGNALS:
          self._call(signal.Signals(number))

  def _call(self, number: signal.Signals) -> None:
    try:
      self.on_signal(number, self._repeats.is_repeated(number))
    except Exception:
      # The thread must survive: the next signal needs it.
      traceback.print_exc()
    if number is signal.SIGHUP:
      for descriptor in self._terminals:
        _redirect_to_null(descriptor)


_program: _Receiver | None = None
# Held, and never released, by the thread that ends the process.
_ending = threading.Lock()
_exit_hooks: list[Callable[[int], None]] = []


def install() -> None:
  """Makes this process a program: signals end it, until `handle` is called.

  Call it in the main thread, first. Forked children get Python's handlers.
  """
  global _program
  if _program is not None:
    return
  _program = _Receiver(stop_at_start)
  _program.install_for_program()
  os.register_at_fork(
    before=_block_signals,
    after_in_parent=_unblock_signals,
    after_in_child=_uninstall_in_child,
  )


def is_installed() -> bool:
  """Returns whether `install` was called in this process."""
  return _program is not None


def handle(on_signal: OnSignal) -> None:
  """In a program, calls a function for each signal from now on.

  The function runs in a thread. Outside of a program, such as in a notebook,
  signals keep their effect.
  """
  if _program is not None:
    _program.on_signal = on_signal


@contextlib.contextmanager
def handling(on_signal: OnSignal) -> Iterator[None]:
  """Calls a function, in a thread, for each signal.

  A program keeps the function afterwards: the next step of the program calls
  `handle`. Elsewhere the previous handlers return afterwards; a repeated signal
  has their effect. Other threads than the main thread cannot handle signals:
  there, nothing changes.
  """
  if _program is not None:
    _program.on_signal = on_signal
    yield
  elif threading.current_thread() is not threading.main_thread():
    yield
  else:
    receiver = _Receiver(on_signal)
    receiver.install_for_job()
    try:
      yield
    finally:
      receiver.close()


def print_message(text: str) -> None:
  """Writes a line to stderr, past the locks of Python's streams.

  On a terminal it takes the place of the line at the cursor, such as progress.
  """
  is_dumb = os.environ.get('TERM', 'dumb') == 'dumb'
  erase = _ERASE_LINE if _is_terminal(2) and not is_dumb else ''
  with contextlib.suppress(OSError):
    os.write(2, f'{erase}pax: {text}\n'.encode())


def add_exit_hook(hook: Callable[[int], None]) -> None:
  """Makes `end_process` call a function with the exit code; it must return."""
  _exit_hooks.append(hook)


def end_process(
  code: int, text: str, before_exit: Callable[[], None] = lambda: None
) -> NoReturn:
  """Ends the process at once, from any thread; other threads cannot prevent it.

  Args:
    code: the exit code.
    text: the reason, for stderr.
    before_exit: called after the message.
  """
  _ending.acquire()
  print_message(text)
  try:
    for hook in _exit_hooks:
      hook(code)
    before_exit()
    _flush_stdout()
  finally:
    os._exit(code)


def wait_if_ending() -> None:
  """Blocks if a thread ends the process: call it before another exit."""
  with _ending:
    pass


def ignore_signals() -> None:
  """Ignores further signals: the program is done, the interpreter exits."""
  for number in SIGNALS:
    signal.signal(number, signal.SIG_IGN)


def _is_terminal(descriptor: int) -> bool:
  try:
    return os.isatty(descriptor)
  except OSError:
    return False


def _redirect_to_null(descriptor: int) -> None:
  null = os.open(os.devnull, os.O_WRONLY)
  os.dup2(null, descriptor)
  os.close(null)


def _flush_stdout() -> None:
  """Flushes stdout; does not wait for a reader that has stopped reading."""

  def flush() -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
      sys.stdout.flush()

  thread = threading.Thread(target=flush, daemon=True)
  thread.start()
  thread.join(_FLUSH_SECS)


def _block_signals() -> None:
  signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _unblock_signals() -> None:
  signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _uninstall_in_child() -> None:
  """A forked child shares the pipe: its signals are not those of the parent."""
  global _program, _ending
  receiver, _program = _program, None
  _ending = threading.Lock()
  if receiver is not None:
    signal.set_wakeup_fd(-1)
    receiver.restore_handlers()
  _unblock_signals()
