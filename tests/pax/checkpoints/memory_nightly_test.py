# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
"""The memory of a process does not grow over hundreds of saves."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

_SAVES = 300
# 3 remain per save; a dictionary of TensorStore's metrics that leaks has 128.
_MAX_OBJECTS = 30
_ARRAY_BYTES = 2**20
# 16 arrays; prints objects of Python and resident bytes after each save.
_SAVE = """
import gc, os, pathlib, sys
import jax
import numpy as np
from pax import checkpoints
rng = np.random.default_rng(0)
state = {
  f'layer_{i}': jax.device_put(rng.random(int(sys.argv[3]) // 4, np.float32))
  for i in range(16)
}
options = checkpoints.CheckpointOptions(
  save_interval_steps=1, max_to_keep=1, use_ocdbt=sys.argv[2] == 'ocdbt'
)
checkpointer = checkpoints.create_checkpointer(options, sys.argv[1])
for step in range(int(sys.argv[4])):
  checkpointer.save(step, state)
  checkpointer.wait()
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[1])
  gc.collect()
  print(sys.getallocatedblocks(), pages * os.sysconf('SC_PAGE_SIZE'))
checkpointer.close()
"""


@pytest.mark.parametrize('layout', ['ocdbt', 'leaves'])
def test_memory_over_saves(tmp_path, layout):
  words = [tmp_path, layout, str(_ARRAY_BYTES), str(_SAVES)]
  done = subprocess.run(
    [sys.executable, '-c', _SAVE, *words],
    check=True,
    capture_output=True,
    text=True,
  )
  values = np.array([line.split() for line in done.stdout.splitlines()])
  assert len(values) == _SAVES
  half = values[_SAVES // 2 :].astype(np.float64)
  objects, num_bytes = np.polyfit(np.arange(len(half)), half, 1)[0]
  assert objects < _MAX_OBJECTS
  # The allocator may take a MiB at once.
  assert num_bytes < _ARRAY_BYTES / 8
