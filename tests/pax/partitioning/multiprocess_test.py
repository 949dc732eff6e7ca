# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Two processes of two devices each train as one process of four does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from pax import partitioning
from tests.pax import tiny

# Meshes of four devices, and how many rows a batch has.
_CASES = ((None, 8), ([1, 2, 2], 8), ([1, 4, 1], 6), ([1, 1, 4], 8))
_STEPS = 2


def losses_on_all_devices(host: int, num_hosts: int) -> list[float]:
  """Returns the losses of every case; a host feeds its rows of a batch."""
  losses = []
  for mesh, num_rows in _CASES:
    each = num_rows // num_hosts
    rows = slice(host * each, (host + 1) * each)
    batches = [
      jax.tree.map(
        lambda x: x[rows],  # noqa: B023
        tiny.batch(rows=num_rows, seed=i),
      )
      for i in range(_STEPS)
    ]
    made = partitioning.partition_task(
      tiny.task(mesh), tiny.spec(batches[0]), devices=jax.devices()[:4]
    )
    key = jax.random.key(0)
    state, step = made.initialize(key), made.train_step()
    for batch in batches:
      state, output = step(state, made.put_batch(batch), key)
      losses.append(float(output.loss))
  return losses


_PROCESS = """
import json, sys
import jax
jax.config.update('jax_cpu_collectives_implementation', 'gloo')
index = int(sys.argv[2])
jax.distributed.initialize(sys.argv[1], 2, index)
from tests.pax.partitioning import multiprocess_test
print(json.dumps(multiprocess_test.losses_on_all_devices(index, 2)))
"""


def _start(address: str, index: int) -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, '-c', _PROCESS, address, str(index)],
    env={
      **os.environ,
      'XLA_FLAGS': '--xla_force_host_platform_device_count=2',
      'PYTHONPATH': os.pathsep.join(filter(None, [os.getcwd(), *sys.path])),
    },
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


@pytest.mark.nightly
def test_losses_are_those_of_one_process():
  with socket.socket() as free:
    free.bind(('localhost', 0))
    address = f'localhost:{free.getsockname()[1]}'
  processes = [_start(address, index) for index in range(2)]
  try:
    outputs = [process.communicate(timeout=240) for process in processes]
  finally:
    for process in processes:
      process.kill()
  wanted = losses_on_all_devices(0, 1)
  for process, (out, err) in zip(processes, outputs, strict=True):
    assert process.returncode == 0, err
    np.testing.assert_allclose(
      json.loads(out.splitlines()[-1]), wanted, rtol=1e-5
    )


def test_rows_of_several_hosts_must_be_dealt_out_evenly(monkeypatch):
  monkeypatch.setattr(jax, 'process_count', lambda: 3)
  with pytest.raises(ValueError, match='batch of 3 rows.*2 devices'):
    partitioning.partition_task(
      tiny.task([1, 2, 1]),
      tiny.spec(tiny.batch(rows=1)),
      devices=jax.devices()[:2],
    )
