# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Prefetching changes neither batches nor saved states."""

from __future__ import annotations

import sys
import threading
import time
import types

import numpy as np
import pytest

from pax.inputs import prefetch
from praxis import base_input, py_utils

NestedMap = py_utils.NestedMap


class Count(base_input.BaseInput):
  """Batches 0 .. size, then the end, or an error at `fails_at`."""

  size: int = 10
  fails_at: int = -1

  def __post_init__(self):
    super().__post_init__()
    self._next = 0

  def get_next(self) -> NestedMap:
    if self._next == self.fails_at:
      raise OSError('disk on fire')
    if self._next == self.size:
      raise StopIteration
    self._next += 1
    return NestedMap(x=np.full((self.batch_size,), self._next - 1))

  def reset(self) -> None:
    self._next = 0

  def _get_state_internal(self):
    return {'next': self._next}

  def _set_state_internal(self, state):
    self._next = state['next']


def make(depth=3, transform=None, **kwargs):
  source = Count.config(batch_size=2, **kwargs).Instantiate()
  return prefetch.Prefetcher(source, depth=depth, transform=transform)


def value(batch) -> int:
  return int(batch.x[0])


def drain(ahead) -> list[int]:
  found = []
  while (batch := ahead.peek()) is not None:
    assert ahead.get_next() is batch
    found.append(value(batch))
  return found


@pytest.mark.parametrize('depth', [1, 2, 20])
def test_batches_come_in_order_and_end(depth):
  with make(depth) as ahead:
    assert drain(ahead) == list(range(10))
    for _ in range(2):
      with pytest.raises(StopIteration):
        ahead.get_next()


def test_the_state_is_behind_the_batch_handed_out():
  with make(depth=8) as ahead:
    assert ahead.get_state() == {'next': 0}
    for i in range(1, 5):
      ahead.get_next()
      assert ahead.get_state() == {'next': i}
    ahead.peek()
    assert ahead.get_state() == {'next': 4}


def test_a_saved_state_gives_the_batches_that_would_have_come():
  with make() as ahead, make() as resumed:
    for _ in range(4):
      ahead.get_next()
    resumed.get_next()
    resumed.peek()
    resumed.set_state(ahead.get_state())
    assert drain(resumed) == drain(ahead) == list(range(4, 10))


class CountFiles(Count):
  """Writes its state to two files; counts how often."""

  _get_state_internal = base_input.BaseInput._get_state_internal
  _set_state_internal = base_input.BaseInput._set_state_internal

  def __post_init__(self):
    super().__post_init__()
    self.num_saves = 0

  def save(self, checkpoint_path):
    self.num_saves += 1
    checkpoint_path.mkdir()
    (checkpoint_path / 'position').write_text(str(self._next))

  def restore(self, checkpoint_path):
    self._next = int((checkpoint_path / 'position').read_text())


@pytest.mark.parametrize('num_batches', [0, 1, 64, 150])
def test_states_of_files_are_exact_and_rare(num_batches):
  config = CountFiles.config(batch_size=2, size=200)
  with prefetch.Prefetcher(config.Instantiate()) as ahead:
    for _ in range(num_batches):
      ahead.get_next()
    ahead.peek()
    state = base_input.state_from_json(
      base_input.state_to_json(ahead.get_state())
    )
    expected = drain(ahead)
    assert ahead.source.num_saves <= 200 // 64 + 1
  resumed = config.Instantiate()
  resumed.set_state(state)
  with prefetch.Prefetcher(resumed) as ahead:
    assert drain(ahead) == expected == list(range(num_batches, 200))


def test_reset_starts_over():
  with make() as ahead:
    first = drain(ahead)
    ahead.reset()
    assert ahead.get_state() == {'next': 0}
    assert drain(ahead) == first


def test_errors_of_the_thread_reach_the_reader():
  with make(fails_at=2) as ahead:
    assert [value(ahead.get_next()) for _ in range(2)] == [0, 1]
    with pytest.raises(OSError, match='fire'):
      ahead.get_next()


def test_transform_runs_in_the_thread():
  threads = []

  def note(batch):
    threads.append(threading.current_thread())
    return NestedMap(x=batch.x + 100)

  with make(transform=note) as ahead:
    assert value(ahead.get_next()) == 100
  assert threading.current_thread() not in threads


def test_close_ends_a_thread_that_waits():
  ahead = make(depth=1)
  ahead.get_next()
  ahead.close()
  assert not any(t.name == 'prefetch input' for t in threading.enumerate())


def test_depth_must_be_positive():
  with pytest.raises(ValueError, match='depth'):
    make(depth=0)


class Stateless(Count):
  def _get_state_internal(self):
    raise NotImplementedError('no state here')


def test_an_input_without_state_can_be_read_but_not_saved():
  source = Stateless.config(batch_size=1).Instantiate()
  with prefetch.Prefetcher(source) as ahead:
    assert drain(ahead) == list(range(10))
    with pytest.raises(NotImplementedError):
      ahead.get_state()


class Stalled(Count):
  """Never returns its third batch, until `released`."""

  released: threading.Event | None = None

  def get_next(self) -> NestedMap:
    if self._next == 2:
      self.released.wait()
    return super().get_next()


class StopRequestedError(Exception):
  """Raised by the monitor."""


class Monitor:
  """Ends the wait after a few checks; or after the batch with a number."""

  def __init__(self, *, checks=0, batch=0):
    self._checks, self._batch = checks, batch

  def raise_if_wait_ends(self):
    self._checks -= 1
    if not self._checks:
      raise StopRequestedError

  def raise_if_requested(self):
    self._batch -= 1
    if not self._batch:
      raise StopRequestedError


def test_a_stop_ends_the_wait_for_a_batch_and_the_thread_is_abandoned():
  released = threading.Event()
  source = Stalled.config(batch_size=2, released=released).Instantiate()
  with prefetch.Prefetcher(source, stop_monitor=Monitor(checks=3)) as ahead:
    assert [value(ahead.get_next()) for _ in range(2)] == [0, 1]
    start = time.monotonic()
    with pytest.raises(StopRequestedError):
      ahead.peek()
    # The state to save: after the last consumed batch.
    assert ahead.get_state() == {'next': 2}
  # No wait for the source, which never returns.
  assert time.monotonic() - start < 60
  released.set()


def test_a_stop_after_a_batch_keeps_it_for_later():
  source = Count.config(batch_size=2).Instantiate()
  with prefetch.Prefetcher(source, stop_monitor=Monitor(batch=2)) as ahead:
    assert value(ahead.get_next()) == 0
    with pytest.raises(StopRequestedError):
      ahead.peek()
    assert ahead.get_state() == {'next': 1}
    assert value(ahead.get_next()) == 1


def test_other_attributes_are_those_of_the_input():
  with make() as ahead:
    assert ahead.batch_size == 2
    assert ahead.get_global_batch_size(ahead) == 2
    with pytest.raises(AttributeError, match='no_such_field'):
      _ = ahead.no_such_field


class OutOfRangeError(Exception):
  """Stands for `tf.errors.OutOfRangeError`."""


def test_data_may_end_as_in_tensorflow(monkeypatch):
  errors = types.SimpleNamespace(OutOfRangeError=OutOfRangeError)
  tensorflow = types.SimpleNamespace(errors=errors)
  monkeypatch.setitem(sys.modules, 'tensorflow', tensorflow)

  class Ending(Count):
    def get_next(self):
      try:
        return super().get_next()
      except StopIteration:
        raise OutOfRangeError from None

  source = Ending.config(batch_size=2, size=3).Instantiate()
  assert [value(source.get_next_padded()) for _ in range(3)] == [0, 1, 2]
  assert source.peek_padded() is None
  source.reset()
  with prefetch.Prefetcher(source) as ahead:
    assert drain(ahead) == [0, 1, 2]


class Endless(base_input.BaseInput):
  """Has only `get_next`, as inputs of users often have."""

  def get_next(self) -> NestedMap:
    return NestedMap(x=np.zeros((self.batch_size,)))


def test_an_input_without_state_may_be_peeked_first():
  source = Endless.config(batch_size=2).Instantiate()
  assert source.peek_padded() is not None
  with pytest.raises(ValueError, match='Endless _get_state_internal'):
    source.get_state()
  assert prefetch.state_of(source) is None
  with prefetch.Prefetcher(source) as ahead:
    ahead.get_next()
    assert prefetch.state_of(ahead) is None


def test_reset_discards_the_peeked_batch():
  source = Count.config(batch_size=2).Instantiate()
  source.peek_padded()
  base_input.BaseInput.reset(source)
  assert value(source.get_next_padded()) == 1
