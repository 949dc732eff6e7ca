# SPDX-License-Identifier: Apache-2.0
"""Key-value store and barriers of JAX's coordination service.

Process 0 serves them over gRPC, from any thread and without devices, so that
threads can wait for each other while the devices compute. JAX has no public
access to its client: this module is the only one that uses it.
"""

from __future__ import annotations

import collections
import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import jax

# Longest text of a process: values are small messages.
_MAX_CHARS = 4096
_MAX_SHOWN = 10


class MissingProcessesError(RuntimeError):
  """Processes did not reach a barrier before its deadline."""

  def __init__(self, message: str, indices: Sequence[int]):
    super().__init__(message)
    # Indices of the processes.
    self.indices = tuple(indices)


class KeyValueStore(Protocol):
  """A store that the processes of a job share."""

  # This process, and the number of processes.
  process: int
  num_processes: int

  def write(self, key: str, value: str) -> None:
    """Writes a value; of several writes the first counts."""
    ...

  def replace(self, key: str, value: str) -> None:
    """Writes a value; of several writes the last counts."""
    ...

  def read(self, directory: str) -> list[str]:
    """Returns the values of all keys that begin with `directory`/."""
    ...

  def delete(self, directory: str) -> None:
    """Deletes all keys that begin with `directory`/."""
    ...

  def wait_at_barrier(self, name: str, timeout_secs: float) -> None:
    """Waits until all processes call it."""
    ...


class CoordinationStore:
  """The key-value store of `jax.distributed`."""

  _num_stores: ClassVar[collections.Counter[str]] = collections.Counter()

  def __init__(self, name: str) -> None:
    """Uses keys of its own: processes make equally many stores of a name.

    Args:
      name: First part of all keys.

    Raises:
      RuntimeError: `jax.distributed.initialize` was not called.
    """
    from jax._src import distributed

    self.process = jax.process_index()
    self.num_processes = jax.process_count()
    self._client: Any = distributed.global_state.client
    if self._client is None:
      raise RuntimeError(
        f'{self.num_processes} processes have no coordination service; call'
        ' jax.distributed.initialize() before anything else of JAX'
      )
    self._prefix = f'pax/{name}/{self._num_stores[name]}'
    self._num_stores[name] += 1

  def write(self, key: str, value: str) -> None:
    try:
      self._client.key_value_set(f'{self._prefix}/{key}', value)
    except Exception as e:
      if 'ALREADY_EXISTS' not in str(e):
        raise

  def replace(self, key: str, value: str) -> None:
    self._client.key_value_set(
      f'{self._prefix}/{key}', value, allow_overwrite=True
    )

  def read(self, directory: str) -> list[str]:
    items = self._client.key_value_dir_get(f'{self._prefix}/{directory}')
    return [value for _, value in items]

  def delete(self, directory: str) -> None:
    self._client.key_value_delete(f'{self._prefix}/{directory}')

  def wait_at_barrier(self, name: str, timeout_secs: float) -> None:
    self._client.wait_at_barrier(
      f'{self._prefix}/{name}', int(1000 * timeout_secs)
    )


class Barriers:
  """Named barriers at which the processes exchange short texts.

  All processes pass the same barriers in the same order.
  """

  def __init__(
    self, name: str, timeout_secs: float, store: KeyValueStore | None = None
  ):
    """Does not connect.

    Args:
      name: Name of these barriers. Of several objects of one name the processes
        make equally many, in the same order.
      timeout_secs: Longest wait for the other processes at a barrier.
      store: The store; None is that of `jax.distributed`.
    """
    self._name = name
    self._timeout_secs = timeout_secs
    self._store = store
    self._num_uses: collections.Counter[str] = collections.Counter()
    self._passed = ''

  def wait(self, name: str, text: str = '') -> Mapping[int, str]:
    """Waits for all processes; returns their texts by process index.

    Args:
      name: The barrier, as in 'checkpoint_00000400 is written'.
      text: Text of this process for the others.

    Raises:
      MissingProcessesError: Processes did not reach the barrier in time.
      Exception: JAX's error if a process is lost, process 0 above all.
    """
    if self._store is None:
      if jax.process_count() == 1:
        return {0: text}
      self._store = CoordinationStore(f'barriers/{self._name}')
    store = self._store
    key = f'{name.replace("/", ".")}/{self._num_uses[name]}'
    self._num_uses[name] += 1
    arrival = [store.process, socket.gethostname(), text[:_MAX_CHARS]]
    store.write(f'{key}/{store.process}', json.dumps(arrival))
    try:
      store.wait_at_barrier(key, self._timeout_secs)
    except Exception as e:
      raise self._explained(e, store, name, key) from e
    texts = {index: text for index, _, text in _arrivals(store, key)}
    if store.process == 0:
      # All processes have read those of the barrier before.
      if self._passed:
        store.delete(self._passed)
      self._passed = key
    return texts

  def _explained(
    self, error: Exception, store: KeyValueStore, name: str, key: str
  ) -> Exception:
    """Returns the error that names the missing processes, if that is it."""
    try:
      arrived = {index: host for index, host, _ in _arrivals(store, key)}
    except Exception:
      # The service itself is lost.
      return error
    count = store.num_processes
    missing = [i for i in range(count) if i not in arrived]
    if not missing:
      own_index = store.process
      return MissingProcessesError(
        f'process {own_index} of {count} (host {socket.gethostname()}) reached'
        f' the barrier {name!r} after the others had stopped waiting for it',
        [own_index],
      )
    shown = ', '.join(map(str, missing[:_MAX_SHOWN]))
    more = ', ...' * (len(missing) > _MAX_SHOWN)
    return MissingProcessesError(
      f'process{"es" * (len(missing) > 1)} {shown}{more} of {count} did not'
      f' reach the barrier {name!r} within {self._timeout_secs:g} s',
      missing,
    )


def _arrivals(store: KeyValueStore, key: str) -> list[tuple[int, str, str]]:
  """Returns (process, host, text) of the processes at a barrier."""
  return sorted(tuple(json.loads(value)) for value in store.read(key))
