# SPDX-License-Identifier: Apache-2.0
"""Peer monitor: ends a process when another process of its job is lost.

Each process keeps one idle TCP connection to process 0. The system closes it
when a process dies, and TCP keepalive closes it when a host is silent, so no
Python thread needs to run for a peer to be alive. Process 0 reports a loss to
all others; the loss of process 0 is the end of the connection itself.

A process announces its exit code before it ends, which distinguishes an orderly
end or an error from a loss, and the error, which the others report too.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from pax import exit_codes, stop_signals
from pax.runner import peer_connections

_PROTOCOL = 'pax-peers-1'
_RETRY_SECS = 0.2
# For the deadline of joining.
_POLL_SECS = 1.0
# Time of process 0 between opening the ports of JAX and of its monitor.
_LISTEN_SECS = 5.0
# Time for a process to report its own error before it reports that of a peer.
_GRACE_SECS = 2.0
_LOG_SECS = 1.0
# Of an error, in a line of at most MAX_LINE bytes, up to six per character.
_MAX_ERROR_CHARS = 500
# Longer than between the failure of a collective and the end of a connection.
_VERDICT_SECS = 5.0
_ADVICE = (
  'this process cannot continue without it; start all processes again to resume'
  ' from the newest checkpoint'
)
_PLACE_ADVICE = (
  'that all processes of the job have the same --num_hosts, and each another'
  ' --host_idx; start all processes again'
)

EndProcess = Callable[[int, str], None]


class _RefusedError(Exception):
  """Process 0 does not take this process for one of its job."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Membership:
  """The place of a process in a job."""

  index: int
  num_processes: int
  # Address of process 0, as host:port.
  coordinator: str
  # Silence after which a host is lost.
  timeout_secs: int
  # Longest wait for all processes.
  join_secs: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loss:
  """Processes that ended, or never joined, while others need them."""

  indices: tuple[int, ...]
  host: str = ''
  # 'closed', 'silent', 'exited' or 'missing'.
  reason: str = 'closed'
  # Announced by the process: its exit code, and its error or ''.
  code: int | None = None
  error: str = ''

  def exit_code(self) -> int:
    """Returns the exit code of a process that cannot continue.

    It is that of a peer which failed for good, since a new start would fail
    again, and PEER_LOST otherwise.
    """
    if self.code in exit_codes.PERMANENT:
      return self.code
    return exit_codes.PEER_LOST

  def message(self, membership: Membership) -> str:
    """Returns the message to the user."""
    count, timeout = membership.num_processes, membership.timeout_secs
    if self.reason == 'missing':
      return (
        f'{_processes(self.indices)} of {count} did not join within'
        f' {membership.join_secs} s (--initialization_timeout_secs) the job at'
        f' {membership.coordinator}; start all processes again'
      )
    host = f' (host {self.host})' if self.host else ''
    name = f'{_processes(self.indices)} of {count}{host}'
    if self.reason == 'exited':
      error = f'. Its error: {self.error}' if self.error else ''
      return f'{name} ended with exit code {self.code}; {_ADVICE}{error}'
    how = 'the connection to it ended'
    if self.reason == 'silent':
      how = f'no answer for {timeout} s (--peer_timeout_secs)'
    return f'{name} is gone: {how}; {_ADVICE}'


class PeerMonitor(abc.ABC):
  """Watches the other processes from a daemon thread."""

  def __init__(self, membership: Membership, end: EndProcess | None = None):
    """Does not connect.

    Args:
      membership: The place of this process.
      end: Ends the process with an exit code and a message.
    """
    self.membership = membership
    self._end_process = end or _end_process
    self._lock = threading.Lock()
    self._loss: Loss | None = None
    self._exit_code: int | None = None
    self._has_joined = False
    self._has_ended = threading.Event()
    self._thread: threading.Thread | None = None
    # The main thread has nothing to report but the loss of a peer.
    self._is_awaiting_verdict = threading.Event()

  @abc.abstractmethod
  def start(self) -> None:
    """Connects, and watches from now on; all processes call it at their start.

    Process 0 returns at once, the others when they have connected to it.
    """

  def joined(self) -> None:
    """JAX has connected all processes: none is missing."""
    self._has_joined = True

  @abc.abstractmethod
  def close(self) -> None:
    """Closes the connections without an announcement."""

  @abc.abstractmethod
  def _announce(self, code: int, error: str) -> None:
    """Sends the exit code and the error to the peers."""

  def announce_exit(self, code: int, error: str = '') -> None:
    """Announces to the peers how this process ends; the first call counts.

    A peer that is lost afterwards ends this process with `code`.

    Args:
      code: The exit code.
      error: The error that ends the process, if one does.
    """
    with self._lock:
      if self._exit_code is not None:
        return
      self._exit_code = code
    self._announce(code, ' '.join(error.split())[:_MAX_ERROR_CHARS])

  def await_verdict(self, timeout_secs: float = _VERDICT_SECS) -> None:
    """Ends the process if a peer is lost; returns if none is for a while.

    The failure of a collective may reach the main thread before the loss of its
    cause reaches the monitor.
    """
    self._is_awaiting_verdict.set()
    time.sleep(timeout_secs)
    stop_signals.wait_if_ending()
    self._is_awaiting_verdict.clear()

  def report_jax_error(self, status: str) -> None:
    """Ends the process after JAX found that another one is dead.

    Args:
      status: JAX's error, or an empty string.
    """
    self.await_verdict()
    detail = f' ({status})' if status else ''
    message = (
      f'cannot join the job at {self.membership.coordinator}{detail}; check'
      f' that its process 0 runs there (--server_addr), and {_PLACE_ADVICE}'
    )
    if self._has_joined:
      message = (
        "JAX's coordination service reports that a process of the job is gone"
        f'{detail}; {_ADVICE}'
      )
    self.end(message, exit_codes.PEER_LOST, self._exit_code)

  def report(self, loss: Loss) -> None:
    """Prints the message about a loss and ends the process, once."""
    with self._lock:
      if self._loss is not None or self._has_ended.is_set():
        return
      self._loss = loss
      announced = self._exit_code
    if announced is None and loss.reason == 'exited':
      self._wait_for_main()
      announced = self._exit_code
    self.end(loss.message(self.membership), loss.exit_code(), announced)

  def end(self, message: str, code: int, announced: int | None = None) -> None:
    """Prints a message, then ends the process.

    Args:
      message: The reason.
      code: The exit code.
      announced: Exit code of a process that had finished before.
    """
    self._has_ended.set()
    if announced is not None:
      self._end_process(announced, f'{message} (this process had finished)')
    else:
      self._end_process(code, message)

  def _wait_for_main(self) -> None:
    """Lets the main thread report an error of its own."""
    deadline = time.monotonic() + _GRACE_SECS
    while time.monotonic() < deadline and self._exit_code is None:
      if self._is_awaiting_verdict.wait(_RETRY_SECS):
        return


# The monitor of this process.
_started: list[PeerMonitor] = []


def start(membership: Membership) -> PeerMonitor:
  """Starts the monitor of this process."""
  is_coordinator = membership.index == 0
  monitor_type = CoordinatorMonitor if is_coordinator else WorkerMonitor
  monitor = monitor_type(membership)
  # The connections of a forked child would outlive this process.
  os.register_at_fork(after_in_child=monitor.close)
  stop_signals.add_exit_hook(monitor.announce_exit)
  _started.append(monitor)
  monitor.start()
  return monitor


def announce_exit(code: int, error: str = '') -> None:
  """Announces to the peers, if any, how this process ends."""
  for monitor in _started:
    monitor.announce_exit(code, error)


def await_verdict() -> None:
  """Ends the process if a peer is lost; returns if none is for a while."""
  for monitor in _started:
    monitor.await_verdict()


@dataclasses.dataclass
class _Peer:
  """A connection of process 0."""

  connection: socket.socket
  received: bytes = b''
  index: int | None = None
  host: str = ''
  code: int | None = None
  error: str = ''


class CoordinatorMonitor(PeerMonitor):
  """The monitor of process 0: accepts and watches all others."""

  def __init__(self, membership: Membership, end: EndProcess | None = None):
    """Does not listen.

    Args:
      membership: The place of this process.
      end: Ends the process with an exit code and a message.
    """
    super().__init__(membership, end)
    self._peers: dict[int, _Peer] = {}
    self._selector = selectors.DefaultSelector()
    self._deadline: float | None = None
    self._listener: socket.socket | None = None

  def start(self) -> None:
    listener = peer_connections.listen(self.membership.coordinator)
    if listener is None:
      logging.warning(
        'No port for the peer monitor near %s', self.membership.coordinator
      )
      return
    self._deadline = time.monotonic() + self.membership.join_secs
    self._listener = listener
    self._selector.register(listener, selectors.EVENT_READ)
    self._thread = _start_thread(self._watch, listener)

  def joined(self) -> None:
    super().joined()
    self._deadline = None

  def close(self) -> None:
    for peer in list(self._peers.values()):
      peer.connection.close()
    self._selector.close()
    if self._listener:
      self._listener.close()

  def _announce(self, code: int, error: str) -> None:
    self._broadcast({'exit': code, 'error': error})

  def _broadcast(self, message: Mapping[str, Any]) -> None:
    for peer in list(self._peers.values()):
      with contextlib.suppress(OSError):
        peer_connections.send(peer.connection, message)

  def _watch(self, listener: socket.socket) -> None:
    while not self._has_ended.is_set():
      for key, _ in self._selector.select(_POLL_SECS):
        if key.data is None:
          self._accept(listener)
        else:
          self._receive(key.data)
      deadline = self._deadline
      if deadline is not None and time.monotonic() > deadline:
        self._deadline = None
        indices = range(1, self.membership.num_processes)
        missing = tuple(i for i in indices if i not in self._peers)
        if missing:
          self._report_to_all(Loss(indices=missing, reason='missing'))

  def _accept(self, listener: socket.socket) -> None:
    try:
      connection, _ = listener.accept()
    except OSError:
      return
    peer_connections.set_keepalive(connection, self.membership.timeout_secs)
    self._selector.register(connection, selectors.EVENT_READ, _Peer(connection))

  def _receive(self, peer: _Peer) -> None:
    """Handles what a peer sent, or the end of its connection."""
    reason = 'closed'
    try:
      data = peer.connection.recv(peer_connections.MAX_LINE)
      peer.received += data
      *lines, peer.received = peer.received.split(b'\n')
      for line in lines:
        self._handle(peer, json.loads(line))
      if data and len(peer.received) < peer_connections.MAX_LINE:
        return
    except OSError as e:
      reason = 'silent' if peer_connections.is_silence(e) else 'closed'
    except (ValueError, KeyError, TypeError):
      pass  # Not a process of this job.
    self._selector.unregister(peer.connection)
    peer.connection.close()
    if peer.index is not None and not self._is_expected_end(peer):
      reason = 'exited' if peer.code is not None else reason
      self._lose(peer.index, peer, reason)

  def _handle(self, peer: _Peer, message: Mapping[str, Any]) -> None:
    if peer.index is None:
      self._welcome(peer, message)
      return
    peer.code, peer.error = int(message['exit']), str(message['error'])

  def _welcome(self, peer: _Peer, hello: Mapping[str, Any]) -> None:
    """Makes a connection that of a process.

    Raises:
      ValueError: it is not a process of this job.
    """
    index = int(hello['index'])
    job = _job_name(self.membership)
    if hello['job'][:-1] != job[:-1]:
      raise ValueError(f'process of another job: {hello}')
    if refusal := self._refusal(index, int(hello['job'][-1])):
      peer_connections.send(peer.connection, {'refusal': refusal})
      raise ValueError(refusal)
    peer.index, peer.host = index, str(hello['host'])
    self._peers[index] = peer
    peer_connections.send(
      peer.connection, {'job': job, 'host': socket.gethostname()}
    )

  def _refusal(self, index: int, num_processes: int) -> str:
    """Why a process is none of this job, or an empty string."""
    count = self.membership.num_processes
    if num_processes != count:
      return f'its --num_hosts is {count}, and {num_processes} here'
    if index in self._peers:
      host = self._peers[index].host
      return f'a process on host {host} has --host_idx={index} already'
    return '' if 0 < index < count else f'it has no process {index}'

  def _is_expected_end(self, peer: _Peer) -> bool:
    """Whether a peer ended when this process had nothing left to do either.

    Orderly processes wait for each other before they end.
    """
    return peer.code is not None and self._exit_code is not None

  def _lose(self, index: int, peer: _Peer, reason: str) -> None:
    self._report_to_all(
      Loss(
        indices=(index,),
        host=peer.host,
        reason=reason,
        code=peer.code,
        error=peer.error,
      )
    )

  def _report_to_all(self, loss: Loss) -> None:
    self._broadcast({'loss': dataclasses.asdict(loss)})
    self.report(loss)


class WorkerMonitor(PeerMonitor):
  """The monitor of any other process: watches process 0, and listens to it."""

  def __init__(self, membership: Membership, end: EndProcess | None = None):
    """Does not connect.

    Args:
      membership: The place of this process.
      end: Ends the process with an exit code and a message.
    """
    super().__init__(membership, end)
    self._connection: socket.socket | None = None
    self._messages: Iterator[bytes] = iter(())
    self._coordinator_host = ''
    self._coordinator_code: int | None = None
    self._coordinator_error = ''

  def start(self) -> None:
    deadline = time.monotonic() + self.membership.join_secs
    reachable_since: float | None = None
    while not self._is_connected():
      now = time.monotonic()
      if reachable_since is None and peer_connections.is_open(
        self.membership.coordinator
      ):
        reachable_since = now
      if reachable_since is not None and now > reachable_since + _LISTEN_SECS:
        logging.warning(
          'The peer monitor of process 0 does not answer at %s (ports %s): the'
          ' loss of a process is noticed by JAX only, within a minute',
          self.membership.coordinator,
          ', '.join(
            map(str, peer_connections.ports(self.membership.coordinator))
          ),
        )
        return
      if now > deadline:
        self.report(Loss(indices=(0,), reason='missing'))
        return
      time.sleep(_RETRY_SECS)
    if self._connection:
      self._thread = _start_thread(self._watch)

  def _is_connected(self) -> bool:
    """Connects to process 0; ends this process if it is refused."""
    try:
      return self._connect()
    except _RefusedError as e:
      self.end(
        f'process 0 of the job at {self.membership.coordinator} refuses this'
        f' process: {e}; check {_PLACE_ADVICE}',
        exit_codes.PEER_LOST,
      )
      return True

  def close(self) -> None:
    if self._connection:
      self._connection.close()

  def _announce(self, code: int, error: str) -> None:
    if self._connection:
      with contextlib.suppress(OSError):
        peer_connections.send(self._connection, {'exit': code, 'error': error})

  def _connect(self) -> bool:
    """Connects to process 0; returns whether it answers.

    Raises:
      _RefusedError: it does not take this process for one of its job.
    """
    host, _ = peer_connections.split_address(self.membership.coordinator)
    hello = {
      'job': _job_name(self.membership),
      'index': self.membership.index,
      'host': socket.gethostname(),
    }
    for port in peer_connections.ports(self.membership.coordinator):
      try:
        connection = peer_connections.connect(host, port)
      except OSError:
        continue
      try:
        peer_connections.send(connection, hello)
        # A process 0 that is only slow would take the end of the connection for
        # that of this process.
        connection.settimeout(self.membership.timeout_secs)
        messages = peer_connections.lines(connection)
        welcome = json.loads(next(messages))
        if 'refusal' in welcome:
          connection.close()
          raise _RefusedError(welcome['refusal'])
        if welcome['job'] == hello['job']:
          self._coordinator_host = str(welcome['host'])
          connection.settimeout(None)
          peer_connections.set_keepalive(
            connection, self.membership.timeout_secs
          )
          self._connection, self._messages = connection, messages
          return True
      except (OSError, StopIteration, ValueError, KeyError, TypeError):
        pass  # Another program, which has this port.
      connection.close()
    return False

  def _watch(self) -> None:
    reason = 'closed'
    try:
      for line in self._messages:
        self._handle(json.loads(line))
    except OSError as e:
      reason = 'silent' if peer_connections.is_silence(e) else 'closed'
    if self._coordinator_code is not None:
      reason = 'exited'
    if self._coordinator_code is None or self._exit_code is None:
      self.report(
        Loss(
          indices=(0,),
          host=self._coordinator_host,
          reason=reason,
          code=self._coordinator_code,
          error=self._coordinator_error,
        )
      )

  def _handle(self, message: Mapping[str, Any]) -> None:
    if 'loss' in message:
      loss = message['loss'] | {'indices': tuple(message['loss']['indices'])}
      self.report(Loss(**loss))
      return
    self._coordinator_code = int(message['exit'])
    self._coordinator_error = str(message['error'])


def _processes(indices: Sequence[int]) -> str:
  """Processes by name, at most ten of them."""
  names = ', '.join(map(str, indices[:10])) + ', ...' * (len(indices) > 10)
  return f'process{"es" * (len(indices) > 1)} {names}'


def _job_name(membership: Membership) -> list[Any]:
  """Distinguishes jobs whose ports overlap."""
  _, port = peer_connections.split_address(membership.coordinator)
  return [_PROTOCOL, port, membership.num_processes]


def _start_thread(
  function: Callable[..., None], *args: Any
) -> threading.Thread:
  thread = threading.Thread(
    target=function, args=args, name='peer monitor', daemon=True
  )
  thread.start()
  return thread


def _end_process(code: int, message: str) -> None:
  """Prints and logs the message, and ends this process."""

  def log() -> None:
    # Another thread may have locked the log.
    _start_thread(logging.info, '%s', message).join(_LOG_SECS)

  stop_signals.end_process(code, f'error: {message}', log)
