# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Monitors of several processes in one, over real connections."""

from __future__ import annotations

import contextlib
import errno
import queue
import socket
import threading
import time

import pytest

from pax.runner import peer_connections, peer_monitor

TIMEOUT_SECS = 20
HOST = socket.gethostname()


class Jobs:
  """Monitors whose processes end by putting a code into a queue."""

  def __init__(self):
    with socket.socket() as free:
      free.bind(('localhost', 0))
      self.address = f'localhost:{free.getsockname()[1]}'
    self.monitors = []
    self.messages = []

  def monitor(self, index, num_processes=3, join_secs=TIMEOUT_SECS):
    membership = peer_monitor.Membership(
      index=index,
      num_processes=num_processes,
      coordinator=self.address,
      timeout_secs=10,
      join_secs=join_secs,
    )
    codes = queue.SimpleQueue()

    def end(code, message):
      self.messages.append(message)
      codes.put(code)

    is_first = index == 0
    kind = (
      peer_monitor.CoordinatorMonitor
      if is_first
      else peer_monitor.WorkerMonitor
    )
    monitor = kind(membership, end)
    monitor.codes = codes
    self.monitors.append(monitor)
    return monitor

  def connected(self, num_processes=3):
    """The monitors of all processes, which have joined."""
    monitors = [self.monitor(i, num_processes) for i in range(num_processes)]
    for monitor in monitors:
      monitor.start()
    for monitor in monitors:
      monitor.joined()
    return monitors


@pytest.fixture
def jobs():
  made = Jobs()
  yield made
  for monitor in made.monitors:
    monitor._exit_code = 0
    monitor._has_ended.set()
    cut(monitor)
  for monitor in made.monitors:
    if monitor._thread:
      monitor._thread.join(TIMEOUT_SECS)
    monitor.close()


def cut(monitor):
  """Ends the connections of a process, as its death does."""
  sockets = [
    peer.connection for peer in getattr(monitor, '_peers', {}).values()
  ]
  sockets += [getattr(monitor, '_connection', None)]
  for connection in filter(None, sockets):
    with contextlib.suppress(OSError):
      connection.shutdown(socket.SHUT_RDWR)


def die(monitor):
  """Ends a process, which has no time to look at its own connections."""
  monitor._has_ended.set()
  if isinstance(monitor, peer_monitor.CoordinatorMonitor):
    monitor._thread.join(TIMEOUT_SECS)
  cut(monitor)


def ended(monitor):
  return monitor.codes.get(timeout=TIMEOUT_SECS)


def test_the_loss_of_a_worker_ends_all_others(jobs):
  first, second, third = jobs.connected()
  die(second)
  assert [ended(first), ended(third)] == [76, 76]
  message = (
    f'process 1 of 3 (host {HOST}) is gone: the connection to it'
    ' ended; this process cannot continue without it; start all processes again'
    ' to resume from the newest checkpoint'
  )
  assert jobs.messages == [message] * 2


def test_the_loss_of_the_first_ends_all_others(jobs):
  first, second, third = jobs.connected()
  die(first)
  assert [ended(second), ended(third)] == [76, 76]
  message = f'process 0 of 3 (host {HOST}) is gone'
  assert sum(message in text for text in jobs.messages) == 2


@pytest.mark.parametrize('index', [0, 1])
@pytest.mark.parametrize(('code', 'expected'), [(1, 1), (2, 2), (124, 76)])
def test_an_error_of_one_is_the_end_of_the_others(jobs, index, code, expected):
  """They end with its code, unless a new start may succeed."""
  monitors = jobs.connected()
  failed = monitors.pop(index)
  for monitor in monitors:
    # Nothing of their own to report.
    threading.Thread(
      target=monitor.await_verdict, args=(TIMEOUT_SECS,), daemon=True
    ).start()
  # Longer than a line of the protocol.
  failed.announce_exit(code, 'the disk\nis full ' + 999 * '\u00e9')
  die(failed)
  assert [ended(monitor) for monitor in monitors] == [expected] * 2
  message = (
    f'process {index} of 3 (host {HOST}) ended with exit code {code}; this'
    ' process cannot continue without it; start all processes again to resume'
    ' from the newest checkpoint. Its error: the disk is full \u00e9\u00e9'
  )
  assert [text[: len(message)] for text in jobs.messages] == [message] * 2


def test_a_process_with_an_error_of_its_own_has_time_for_it(jobs, monkeypatch):
  first, second = jobs.connected(2)
  monkeypatch.setattr(first, '_wait_for_main', lambda: first.announce_exit(2))
  second.announce_exit(1)
  die(second)
  assert ended(first) == 2
  assert 'this process had finished' in jobs.messages[0]


def test_orderly_ends_are_no_losses(jobs):
  first, second, third = jobs.connected()
  for monitor, code in ((first, 75), (second, 75), (third, 75)):
    monitor.announce_exit(code)
  for monitor in (third, second):
    die(monitor)
  first.await_verdict(0.1)
  die(first)
  assert all(monitor.codes.empty() for monitor in jobs.monitors)
  assert not jobs.messages


def test_a_process_that_stops_alone_is_missed(jobs):
  first, second = jobs.connected(2)
  second.announce_exit(75)
  die(second)
  assert ended(first) == 76
  assert 'ended with exit code 75' in jobs.messages[0]
  assert 'error' not in jobs.messages[0]


def test_a_finished_process_keeps_its_code(jobs):
  first, second = jobs.connected(2)
  first.announce_exit(0)
  die(second)
  assert ended(first) == 0
  assert 'this process had finished' in jobs.messages[0]


def test_processes_that_do_not_join_are_named(jobs):
  first, second = (jobs.monitor(i, 5, join_secs=1) for i in (0, 1))
  first.start()
  second.start()
  assert [ended(first), ended(second)] == [76, 76]
  message = (
    'processes 2, 3, 4 of 5 did not join within 1 s'
    f' (--initialization_timeout_secs) the job at {jobs.address}'
  )
  assert sum(message in text for text in jobs.messages) == 2


def test_a_first_process_that_does_not_start_is_named(jobs):
  second = jobs.monitor(1, join_secs=1)
  second.start()
  assert ended(second) == 76
  assert 'process 0 of 3 did not join within 1 s' in jobs.messages[0]


def test_other_programs_on_its_ports_do_not_matter(jobs):
  _, port = jobs.address.split(':')
  taken = peer_connections.ports(jobs.address)[0]
  with socket.create_server(('', taken)) as other:

    def answer():
      with contextlib.suppress(OSError):
        while True:
          connection, _ = other.accept()
          connection.sendall(b'{"job": 3}\nnonsense\n')
          connection.close()

    threading.Thread(target=answer, daemon=True).start()
    first, second = jobs.connected(2)
    _, used, *_ = second._connection.getpeername()
    assert used in peer_connections.ports(jobs.address)[1:]
    job = f'["pax-peers-1", {port}, 2]'
    for line in (
      'nonsense\n',
      '[]\n',
      '{"index": 1}\n',
      '{"job": ["pax-peers-1", 1, 2], "index": 1, "host": "other"}\n',
      f'{{"job": {job}, "index": "none", "host": "none"}}\n',
      '[' * 5000,
    ):
      with socket.create_connection(('localhost', used)) as stranger:
        stranger.sendall(line.encode())
        stranger.settimeout(TIMEOUT_SECS)
        with contextlib.suppress(ConnectionResetError):
          assert stranger.recv(1) == b''
    assert first.codes.empty() and second.codes.empty()
    other.shutdown(socket.SHUT_RDWR)
  assert not jobs.messages


def test_a_slow_first_process_keeps_the_first_connection(jobs, monkeypatch):
  """It would report the end of any as the loss of its process."""
  monkeypatch.setattr(peer_connections, 'CONNECT_SECS', 0.2)
  welcome = peer_monitor.CoordinatorMonitor._welcome

  def welcome_late(monitor, peer, hello):
    time.sleep(1)
    welcome(monitor, peer, hello)

  monkeypatch.setattr(peer_monitor.CoordinatorMonitor, '_welcome', welcome_late)
  first, second = jobs.connected(2)
  time.sleep(0.5)
  assert first.codes.empty() and second.codes.empty()
  assert not jobs.messages and list(first._peers) == [1]


@pytest.mark.parametrize(
  ('index', 'num_processes', 'reason'),
  [
    (1, 3, 'its --num_hosts is 2, and 3 here'),
    (2, 3, 'its --num_hosts is 2, and 3 here'),
    (1, 2, f'a process on host {HOST} has --host_idx=1 already'),
    (2, 2, 'it has no process 2'),
  ],
)
def test_a_process_with_another_place_is_refused(
  jobs, index, num_processes, reason
):
  first, second = jobs.connected(2)
  wrong = jobs.monitor(index, num_processes)
  wrong.start()
  assert ended(wrong) == 76
  (message,) = jobs.messages
  assert f'job at {jobs.address} refuses this process: {reason}; ' in message
  assert first.codes.empty() and second.codes.empty()


def test_without_its_port_only_jax_watches(jobs, caplog, monkeypatch):
  """The coordinator of JAX answers, the monitor does not."""
  monkeypatch.setattr(peer_monitor, '_LISTEN_SECS', 0.2)
  host, port = jobs.address.split(':')
  with socket.create_server((host, int(port))):
    second = jobs.monitor(1)
    second.start()
  assert second.codes.empty()
  assert 'the loss of a process is noticed by JAX only' in caplog.text
  second.announce_exit(1)


def test_an_error_of_jax_ends_the_process(jobs, monkeypatch):
  monkeypatch.setattr(peer_monitor.PeerMonitor, 'await_verdict', lambda _: None)
  first, _ = jobs.connected(2)
  first.report_jax_error('UNAVAILABLE')
  assert ended(first) == 76
  assert 'a process of the job is gone (UNAVAILABLE);' in jobs.messages[0]


def test_an_error_of_jax_before_all_have_joined_names_the_flags(
  jobs, monkeypatch
):
  monkeypatch.setattr(peer_monitor.PeerMonitor, 'await_verdict', lambda _: None)
  second = jobs.monitor(1)
  second.report_jax_error('')
  assert ended(second) == 76
  assert f'cannot join the job at {jobs.address}; check' in jobs.messages[0]
  assert '(--server_addr)' in jobs.messages[0]


def test_the_system_ends_connections_to_silent_hosts(jobs):
  """Within the timeout: idle time and probes, or data that is not received."""
  first, second = jobs.connected(2)
  (peer,) = first._peers.values()
  for connection in (peer.connection, second._connection):
    options = {
      name: connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
      for name in (
        *('TCP_KEEPIDLE', 'TCP_KEEPINTVL', 'TCP_KEEPCNT'),
        'TCP_USER_TIMEOUT',
      )
    }
    assert list(options.values()) == [4, 2, 3, 10_000]
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
  assert peer_connections.is_silence(OSError(errno.ETIMEDOUT, ''))
  loss = peer_monitor.Loss(indices=(1,), host='b', reason='silent')
  assert 'process 1 of 2 (host b) is gone: no answer for 10 s' in loss.message(
    first.membership
  )


def test_a_socket_that_connects_to_itself_is_no_peer(monkeypatch):
  """By chance the system takes the wanted port as the local one."""
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    address = free.getsockname()
  create = socket.create_connection
  connections = []

  def create_from_the_same_port(target, timeout):
    connection = create(target, timeout, source_address=target)
    connections.append((connection.getsockname(), connection.getpeername()))
    return connection

  monkeypatch.setattr(socket, 'create_connection', create_from_the_same_port)
  assert not peer_connections.is_open(f'{address[0]}:{address[1]}')
  assert connections == [(address, address)]
