# SPDX-License-Identifier: Apache-2.0
"""The quickstart as it is: how long it takes, and how well it learns."""

# bazel: size=large
# bazel: tags=nightly,exclusive
from __future__ import annotations

import time

from tests.integration import quickstart


def test_four_minutes_are_enough(tmp_path, monkeypatch):
  monkeypatch.setenv('JAX_DISABLE_MOST_OPTIMIZATIONS', '0')
  monkeypatch.delenv('XLA_FLAGS')
  start = time.monotonic()
  quickstart.train('TinyLm', tmp_path, timeout=600)
  assert time.monotonic() - start < 240
  bits = quickstart.bits_per_byte(tmp_path, 'eval_test_held_out')
  assert bits[-1] <= 2.1
