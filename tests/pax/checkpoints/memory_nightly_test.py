# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
# bazel: deps=//tests/pax/checkpoints:save_many
"""The memory of a process does not grow over hundreds of saves."""

from __future__ import annotations

import numpy as np
import pytest

from tests.testing import programs

_SAVES = 300
# 3 remain per save; a dictionary of TensorStore's metrics that leaks has 128.
_MAX_OBJECTS = 30
_ARRAY_BYTES = 2**20


@pytest.mark.parametrize('layout', ['ocdbt', 'leaves'])
def test_memory_over_saves(tmp_path, layout):
  words = [str(tmp_path), layout, str(_ARRAY_BYTES), str(_SAVES)]
  program = programs.Program(
    ['tests.pax.checkpoints.save_many', *words], programs.environment(), ()
  )
  completed = program.wait(600)
  assert completed.returncode == 0, completed.stderr
  values = np.array([line.split() for line in completed.stdout.splitlines()])
  assert len(values) == _SAVES
  half = values[_SAVES // 2 :].astype(np.float64)
  objects, num_bytes = np.polyfit(np.arange(len(half)), half, 1)[0]
  assert objects < _MAX_OBJECTS
  # The allocator may take a MiB at once.
  assert num_bytes < _ARRAY_BYTES / 8
