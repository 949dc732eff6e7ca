# SPDX-License-Identifier: Apache-2.0
"""Waiting for conditions of other threads and processes."""

from __future__ import annotations

import time
from collections.abc import Callable

_POLL_SECS = 0.005


def wait_until(
  condition: Callable[[], bool], timeout_secs: float = 240
) -> None:
  """Polls until a condition holds.

  Raises:
    TimeoutError: it does not hold in time.
  """
  deadline = time.monotonic() + timeout_secs
  while not condition():
    if time.monotonic() > deadline:
      raise TimeoutError(f'the condition was false for {timeout_secs:g} s')
    time.sleep(_POLL_SECS)
