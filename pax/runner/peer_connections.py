# SPDX-License-Identifier: Apache-2.0
"""Connections of the peer monitor: ports, keepalive, JSON lines."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any

CONNECT_SECS = 2.0
MAX_LINE = 4096
# Offsets of the ports that process 0 tries, from that of the coordinator.
_PORT_OFFSETS = range(1000, 1008)
_MAX_PORT = 65535
_MIN_PORT = 1024


def split_address(address: str) -> tuple[str, int]:
  """Returns host and port."""
  host, _, port = address.rpartition(':')
  return host.strip('[]'), int(port)


def ports(address: str) -> list[int]:
  """Returns the ports of the monitor; process 0 takes the first free one.

  Args:
    address: That of the coordinator.
  """
  _, port = split_address(address)
  span = _MAX_PORT + 1 - _MIN_PORT
  return [(port + o - _MIN_PORT) % span + _MIN_PORT for o in _PORT_OFFSETS]


def listen(coordinator: str) -> socket.socket | None:
  """Listens on one of the ports; returns None if none is free."""
  is_dual = socket.has_dualstack_ipv6()
  for port in ports(coordinator):
    with contextlib.suppress(OSError):
      return socket.create_server(
        ('', port),
        family=socket.AF_INET6 if is_dual else socket.AF_INET,
        backlog=socket.SOMAXCONN,
        dualstack_ipv6=is_dual,
      )
  return None


def connect(host: str, port: int) -> socket.socket:
  """Returns a connection to another process.

  Raises:
    OSError: the port is not open. On the same host the system may choose the
      port itself as the local one, and connect the socket to itself.
  """
  connection = socket.create_connection((host, port), CONNECT_SECS)
  try:
    is_to_itself = connection.getsockname() == connection.getpeername()
  except OSError:
    connection.close()
    raise
  if is_to_itself:
    connection.close()
    raise ConnectionRefusedError(errno.ECONNREFUSED, 'the port is not open')
  return connection


def is_open(address: str) -> bool:
  """Whether process 0 has opened JAX's port."""
  try:
    connect(*split_address(address)).close()
  except OSError:
    return False
  return True


def set_keepalive(connection: socket.socket, timeout_secs: int) -> None:
  """Ends the connection when the other host is silent for the time."""
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  probes = 3
  interval = max(1, timeout_secs // 5)
  idle = max(1, timeout_secs - probes * interval)
  options = {
    'TCP_KEEPIDLE': idle,
    'TCP_KEEPINTVL': interval,
    'TCP_KEEPCNT': probes,
    # For data without an acknowledgement, where keepalive does not act.
    'TCP_USER_TIMEOUT': 1000 * timeout_secs,
  }
  for name, value in options.items():
    # Some systems lack some options.
    if hasattr(socket, name):
      connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def is_silence(error: OSError) -> bool:
  """Whether a connection ended because its other host is silent."""
  silent = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
  return error.errno in silent


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
  """Sends a message as a line.

  Raises:
    OSError: the connection has ended.
  """
  connection.sendall(json.dumps(message).encode() + b'\n')


def lines(connection: socket.socket) -> Iterator[bytes]:
  """Yields complete lines until the connection ends.

  Raises:
    OSError: it ended by an error, or a line is too long.
  """
  received = b''
  while data := connection.recv(MAX_LINE):
    *lines, received = (received + data).split(b'\n')
    yield from lines
    if len(received) > MAX_LINE:
      raise OSError('line too long')
