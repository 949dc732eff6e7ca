# SPDX-License-Identifier: Apache-2.0
"""Saves a state of 16 arrays many times.

    python -m tests.pax.checkpoints.save_many DIR LAYOUT BYTES SAVES

After each save it prints the memory blocks of Python and the resident bytes.
"""

# bazel: deps=//pax/checkpoints
from __future__ import annotations

import gc
import sys

import jax
import numpy as np
import psutil

from pax import checkpoints


def main(directory: str, layout: str, num_bytes: str, num_saves: str) -> None:
  """Saves arrays of `num_bytes` each."""
  rng = np.random.default_rng(0)
  state = {
    f'layer_{i}': jax.device_put(rng.random(int(num_bytes) // 4, np.float32))
    for i in range(16)
  }
  options = checkpoints.CheckpointOptions(
    save_interval_steps=1, max_to_keep=1, use_ocdbt=layout == 'ocdbt'
  )
  checkpointer = checkpoints.create_checkpointer(options, directory)
  for step in range(int(num_saves)):
    checkpointer.save(step, state)
    checkpointer.wait()
    rss = psutil.Process().memory_info().rss
    gc.collect()
    print(sys.getallocatedblocks(), rss)
  checkpointer.close()


if __name__ == '__main__':
  main(*sys.argv[1:])
