# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""What cannot fit is refused before anything is allocated."""

from __future__ import annotations

import jax
import numpy as np
import psutil
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pax.partitioning import memory


def _sharded(shape, spec):
  mesh = Mesh(np.asarray(jax.devices()[:4]), ('data',))
  return jax.ShapeDtypeStruct(
    shape, np.float32, sharding=NamedSharding(mesh, spec)
  )


def test_bytes_are_those_of_one_device():
  state = [
    _sharded((8, 4), PartitionSpec('data')),
    _sharded((8, 4), PartitionSpec()),
  ]
  assert memory.state_bytes_per_device(state) == 4 * (2 * 4 + 8 * 4)


def test_too_much_names_both_amounts_and_a_flag(monkeypatch):
  monkeypatch.setattr(memory, '_free_ram', lambda: 8 * 2**30)
  state = _sharded((2**30, 4), PartitionSpec('data'))
  report = memory.check(state, jax.devices()[:2])
  assert report.free_bytes_per_device == 4 * 2**30
  with pytest.raises(ValueError) as error:
    memory.check(state, jax.devices()[:4])
  text = str(error.value)
  assert 'needs 4.00 GiB per device and 2.00 GiB are free' in text
  assert '--set' in text


def test_a_device_that_tells_nothing_is_trusted(monkeypatch):
  monkeypatch.setattr(memory, '_free_ram', lambda: None)
  state = _sharded((2**40,), PartitionSpec())
  assert memory.check(state, jax.devices()).free_bytes_per_device is None


def test_accelerators_tell_by_memory_stats():
  class Gpu:
    platform = 'gpu'
    process_index = 0

    def __init__(self, used):
      self.used = used

    def memory_stats(self):
      return {'bytes_limit': 100, 'bytes_in_use': self.used}

  report = memory.check(_sharded((4,), PartitionSpec()), [Gpu(10), Gpu(40)])
  assert report.free_bytes_per_device == 60


def test_free_ram_is_measured_here():
  assert memory._free_ram() is None or memory._free_ram() > 2**20


def test_freed_memory_goes_back_to_the_system():
  # Many small blocks stay in the allocator, big ones would be unmapped anyway.
  blocks = [bytes(1000) for _ in range(100_000)]
  last = blocks[-1]
  full = _resident_bytes()
  blocks = [last]
  memory.trim_heap()
  assert full - _resident_bytes() > 50_000_000


def _resident_bytes():
  return psutil.Process().memory_info().rss
