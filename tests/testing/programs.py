# SPDX-License-Identifier: Apache-2.0
"""Programs that start at once: forks of a process that has imported a lot.

A test that starts `python -m pax.main` ten times would import JAX ten times.
What starts here is a process of its own all the same, with its own arguments,
environment, output, signals and end; it only finds its modules imported.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import psutil

_TIMEOUT_SECS = 120
# A program prints its stacks in less.
_ABORT_SECS = 10
# The first program imports its modules; other tests may use the cores, too.
_START_SECS = 600
# A program that computes uses more CPU time between two looks at it; threads
# that poll use less.
_MIN_CPU_SECS = 10.0
_DEVICES = 'xla_force_host_platform_device_count'
_MAX_REQUEST = 1 << 20
_SERVE = """
import sys
from tests.testing import programs
programs.serve(int(sys.argv[1]), sys.argv[2:])
"""


def environment() -> dict[str, str]:
  """This process's, without the devices that tests simulate.

  What runs a few steps is compiled as fast as can be, unless told otherwise.
  """
  found = dict(os.environ)
  flags = found.get('XLA_FLAGS', '').split()
  found['XLA_FLAGS'] = ' '.join(f for f in flags if _DEVICES not in f)
  found['PYTHONPATH'] = os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))
  return {'JAX_DISABLE_MOST_OPTIMIZATIONS': '1'} | found


class Program:
  """A program that runs."""

  def __init__(
    self,
    words: Sequence[str],
    env: dict[str, str],
    preloaded: tuple[str, ...],
    folder: str | os.PathLike[str] | None = None,
  ):
    """Starts `python -m` with `words`.

    Args:
      words: the module and its arguments.
      env: its environment.
      preloaded: modules that it finds imported.
      folder: its working directory, also a path of its imports; None is that
        of the caller.
    """
    self._words = list(words)
    self._files = [tempfile.TemporaryFile('w+') for _ in range(2)]
    mine, its = socket.socketpair()
    values = {'words': self._words, 'env': env}
    if folder is not None:
      values['folder'] = str(folder)
    request = json.dumps(values).encode()
    handles = [its.fileno(), *(file.fileno() for file in self._files)]
    hand_over(request, handles, preloaded)
    its.close()
    mine.settimeout(_START_SECS)
    self._socket, self._answers = mine, mine.makefile()
    # Of its process.
    self.pid = int(self._answers.readline())

  def send_signal(self, number: int) -> None:
    os.kill(self.pid, number)

  def wait(
    self, timeout: float = _TIMEOUT_SECS
  ) -> subprocess.CompletedProcess[str]:
    """Returns how it ended and what it printed.

    Raises:
      TimeoutError: it runs after `timeout` seconds; it is killed. The message
        has what it printed and the stacks of its threads.
    """
    try:
      if not select.select([self._socket], [], [], timeout)[0]:
        self._abort()
        text = '\n'.join(self._outputs())
        raise TimeoutError(f'{self._words} runs after {timeout} s:\n{text}')
      code = int(self._answers.readline())
      return subprocess.CompletedProcess(self._words, code, *self._outputs())
    finally:
      for file in (self._answers, self._socket, *self._files):
        file.close()

  def _abort(self) -> None:
    """Ends it, which prints the stacks of its threads if it can."""
    for number in (signal.SIGABRT, signal.SIGKILL):
      with contextlib.suppress(ProcessLookupError):
        self.send_signal(number)
      if select.select([self._socket], [], [], _ABORT_SECS)[0]:
        return

  def _outputs(self) -> list[str]:
    """Returns what it printed, to its output and its error output."""
    texts = []
    for handle in (file.fileno() for file in self._files):
      # Its processes that still end write at the position, which is shared:
      # reading must not move it.
      text = os.pread(handle, os.fstat(handle).st_size, 0)
      texts.append(text.decode())
    return texts

  def wait_while_it_works(
    self, idle_secs: float
  ) -> subprocess.CompletedProcess[str]:
    """Returns as `wait`; the deadline is `idle_secs` after it last computed.

    On a loaded machine a program takes longer, and is not killed.
    """
    used = 0.0
    while not select.select([self._socket], [], [], idle_secs)[0]:
      before, used = used, cpu_secs(self.pid)
      if used - before < _MIN_CPU_SECS:
        return self.wait(0.1)
    return self.wait()


def cpu_secs(pid: int) -> float:
  """Returns the CPU time of a process; 0 if it has ended."""
  try:
    times = psutil.Process(pid).cpu_times()
  except psutil.NoSuchProcess:
    return 0.0
  return times.user + times.system


def is_running(pid: int) -> bool:
  """Whether a process has not ended; one whose parent does not wait has."""
  try:
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


def workers_of(pid: int) -> list[int]:
  """The processes that `multiprocessing` started for a process."""
  workers = []
  for child in psutil.Process(pid).children():
    with contextlib.suppress(psutil.NoSuchProcess):
      if any('spawn_main' in word for word in child.cmdline()):
        workers.append(child.pid)
  return workers


def hand_over(
  request: bytes, handles: Sequence[int], preloaded: tuple[str, ...]
) -> None:
  """Lets a program start, whoever waits for it.

  Args:
    request: JSON with its `words`, its `env` and maybe its `folder`.
    handles: what is told its number and how it ends, a line each; then its
      output, its errors, and maybe its input.
    preloaded: modules that it finds imported.
  """
  socket.send_fds(_server(preloaded), [request], handles)


@functools.cache
def _server(preloaded: tuple[str, ...]) -> socket.socket:
  """Starts the process that forks; it ends when this one does."""
  mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  handle = its.fileno()
  process = subprocess.Popen(
    # SIGABRT makes a program print the stacks of its threads.
    [sys.executable, '-X', 'faulthandler', '-c', _SERVE]
    + [str(handle), *preloaded],
    env=environment(),
    stdin=subprocess.DEVNULL,
    pass_fds=[handle],
  )
  its.close()

  @atexit.register
  def end() -> None:
    mine.close()
    process.wait()

  return mine


def serve(handle: int, preloaded: Sequence[str]) -> None:
  """Starts what the socket `handle` asks for, until its other end closes."""
  for name in preloaded:
    importlib.import_module(name)
  # Collections of programs need not visit what they all share.
  gc.freeze()
  # Nobody waits for those that watch.
  signal.signal(signal.SIGCHLD, signal.SIG_IGN)
  requests = socket.socket(fileno=handle)
  while True:
    text, handles, _, _ = socket.recv_fds(requests, _MAX_REQUEST, 4)
    if not text:
      return
    if os.fork() == 0:
      return _watch(json.loads(text), handles)
    for handle in handles:
      os.close(handle)


def _watch(request: dict, handles: Sequence[int]) -> None:
  """Forks into the program, and what tells its number and how it ended."""
  answers, *streams = handles
  signal.signal(signal.SIGCHLD, signal.SIG_DFL)
  pid = os.fork()
  if pid == 0:
    os.close(answers)
    for number, stream in zip((1, 2, 0), streams, strict=False):
      os.dup2(stream, number)
    os.environ.clear()
    os.environ.update(request['env'])
    if folder := request.get('folder'):
      os.chdir(folder)
      sys.path.insert(0, folder)
    sys.argv[:] = request['words']
    runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
    return
  os.write(answers, f'{pid}\n'.encode())
  _, status = os.waitpid(pid, 0)
  os.write(answers, f'{os.waitstatus_to_exitcode(status)}\n'.encode())
  # Not as the program ends: it flushes and finalizes nothing.
  os._exit(0)
