# SPDX-License-Identifier: Apache-2.0
"""One of two processes of a script that fails.

    python -m tests.pax.runner.failing_pair ADDRESS INDEX FAULT

FAULT is `mismatch`: their collectives differ in length, so Gloo throws in
process 0, on a thread of its own; `death`: in addition, process 1 is killed a
second later; or `exception`: process 1 does not catch an exception.
"""

# bazel: deps=//pax/runner
from __future__ import annotations

import os
import signal
import sys
import threading

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pax.runner import distributed, options, peer_monitor


def main(address: str, process: str, fault: str) -> None:
  """Sums vectors of the same length, then fails."""
  index = int(process)
  distributed.initialize(
    options.RunOptions(
      multiprocess_gpu=True,
      server_addr=address,
      num_hosts=2,
      host_idx=index,
      host_device_count=1,
      compilation_cache_dir='',
    )
  )
  np.testing.assert_array_equal(_total(3), np.full(3, 2))
  if index == 1 and fault == 'exception':
    raise ValueError('process 1 fails')
  if index == 1 and fault == 'death':
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGKILL)).start()
  try:
    print(_total(1000 if index else 10))
  except jax.errors.JaxRuntimeError:
    peer_monitor.await_verdict()
    raise


def _total(length: int) -> jax.Array:
  """Returns the sum of a vector of ones of each process."""
  mesh = Mesh(jax.devices(), 'x')
  rows = jax.make_array_from_callback(
    (2, length),
    NamedSharding(mesh, PartitionSpec('x')),
    lambda _: np.ones((1, length), np.float32),
  )
  replicated = NamedSharding(mesh, PartitionSpec())
  return jax.jit(lambda x: x.sum(0), out_shardings=replicated)(rows)


if __name__ == '__main__':
  main(*sys.argv[1:])
