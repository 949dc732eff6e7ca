# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Barriers of processes: exchange of texts, names of missing processes."""

from __future__ import annotations

import socket
from concurrent import futures

import jax
import pytest

from pax import coordination_service
from tests.testing.coordination_store import Server, Store

_DEADLINE_SECS = 30


def _barriers(server, timeout_secs=_DEADLINE_SECS):
  return [
    coordination_service.Barriers('job', timeout_secs, Store(server, i))
    for i in range(server.num_processes)
  ]


def _wait_all(barriers, name):
  """Passes a barrier with each of the objects; returns results or errors."""
  with futures.ThreadPoolExecutor(len(barriers)) as pool:
    waits = [
      pool.submit(barrier.wait, name, f'text {index}')
      for index, barrier in enumerate(barriers)
    ]
    return [wait.exception() or wait.result() for wait in waits]


def test_all_get_the_texts_of_all():
  barriers = _barriers(Server(3))
  texts = {i: f'text {i}' for i in range(3)}
  assert _wait_all(barriers, 'step 1 is written') == [texts] * 3
  # A name may be used again.
  assert _wait_all(barriers, 'step 1 is written') == [texts] * 3


def test_the_store_does_not_grow():
  server = Server(2)
  barriers = _barriers(server)
  for step in range(10):
    _wait_all(barriers, f'step {step} is written')
  assert len(server.values) <= 2 * 2


def test_names_those_who_are_missing():
  errors = _wait_all(_barriers(Server(4), 0.2)[1:3], 'step 7 is written')
  for error in errors:
    assert isinstance(error, coordination_service.MissingProcessesError)
    assert error.indices == (0, 3)
    assert str(error) == (
      "processes 0, 3 of 4 did not reach the barrier 'step 7 is written'"
      ' within 0.2 s'
    )


def test_one_who_comes_too_late_knows_it():
  first, second = _barriers(Server(2), 0.1)
  with pytest.raises(coordination_service.MissingProcessesError):
    first.wait('step 7 is written')
  with pytest.raises(
    coordination_service.MissingProcessesError,
    match=rf'process 1 of 2 \(host {socket.gethostname()}\) reached .* after',
  ):
    second.wait('step 7 is written')


def test_the_loss_of_the_service_is_the_error():
  class LostStore(Store):
    def read(self, directory):
      raise ConnectionError('UNAVAILABLE: gone')

    def wait_at_barrier(self, name, timeout_secs):
      raise ConnectionError('UNAVAILABLE: closed')

  barriers = coordination_service.Barriers('job', 1, LostStore(Server(2), 0))
  with pytest.raises(ConnectionError, match='UNAVAILABLE: closed'):
    barriers.wait('step 7 is written')


def test_one_process_needs_no_service():
  assert coordination_service.Barriers('job', 1).wait('x', 'a') == {0: 'a'}


def test_several_processes_without_the_service_are_an_error(monkeypatch):
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  with pytest.raises(RuntimeError, match='call jax.distributed.initialize'):
    coordination_service.Barriers('job', 1).wait('x')
