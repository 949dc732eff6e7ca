# SPDX-License-Identifier: Apache-2.0
"""The figures of each test, one JSON line per test at the end of the output.

FAULTS {"test": "kills_test.py::test_eval", "secs": 31.2, "kills": 80}

    ./bazelw test --config=nightly --test_output=all //tests/faults/... |
        grep '^FAULTS'
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest

_LINES: list[str] = []


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
  """Takes figures of a test, such as `report(kills=80)`; equal names add up."""
  figures: dict[str, int] = {}
  began = time.monotonic()

  def add(**counts: int) -> None:
    for name, count in counts.items():
      figures[name] = figures.get(name, 0) + count

  yield add
  name = request.node.nodeid.rpartition('/')[2]
  secs = round(time.monotonic() - began, 1)
  line = json.dumps({'test': name, 'secs': secs, **figures})
  _LINES.append(f'FAULTS {line}')


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
  """Prints the lines."""
  for line in _LINES:
    terminalreporter.write_line(line)
