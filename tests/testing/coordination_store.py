# SPDX-License-Identifier: Apache-2.0
"""The coordination service of a job whose processes are threads of a test."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent import futures

from pax import coordination_service


class Server:
  """The values and barriers of a job."""

  def __init__(self, num_processes: int):
    self.num_processes = num_processes
    self.values: dict[str, str] = {}
    self.lock = threading.Lock()
    self._barriers = defaultdict(lambda: threading.Barrier(num_processes))

  def barrier(self, name: str) -> threading.Barrier:
    """Returns the barrier of this name, at which all processes meet."""
    with self.lock:
      return self._barriers[name]


class Store:
  """A connection of a process to the server."""

  def __init__(self, server: Server, process: int):
    self._server = server
    self.process, self.num_processes = process, server.num_processes

  def write(self, key: str, value: str) -> None:
    with self._server.lock:
      self._server.values.setdefault(key, value)

  def replace(self, key: str, value: str) -> None:
    with self._server.lock:
      self._server.values[key] = value

  def read(self, directory: str) -> list[str]:
    with self._server.lock:
      items = sorted(self._server.values.items())
    return [value for key, value in items if key.startswith(f'{directory}/')]

  def delete(self, directory: str) -> None:
    with self._server.lock:
      for key in list(self._server.values):
        if key.startswith(f'{directory}/'):
          del self._server.values[key]

  def wait_at_barrier(self, name: str, timeout_secs: float) -> None:
    self._server.barrier(name).wait(timeout_secs)


def errors_of_processes(
  checks: Sequence[Callable[[coordination_service.Barriers], object]],
) -> list[BaseException | None]:
  """Calls one function per process of a job; returns what each raised."""
  server = Server(len(checks))
  with futures.ThreadPoolExecutor(len(checks)) as pool:
    calls = [
      pool.submit(
        check, coordination_service.Barriers('job', 30, Store(server, index))
      )
      for index, check in enumerate(checks)
    ]
    return [call.exception() for call in calls]
