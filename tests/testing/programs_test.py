# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Programs that hang are killed, programs that compute are not."""

from __future__ import annotations

import pytest

from tests.testing import programs


def start(*words: str) -> programs.Program:
  return programs.Program(list(words), programs.environment(), ())


def test_a_program_that_waits_is_killed_and_tells_where():
  process = start('http.server', '0')
  with pytest.raises(TimeoutError, match='in serve_forever') as raised:
    process.wait_while_it_works(1)
  assert 'http.server' in str(raised.value)
  assert not programs.is_running(process.pid)


def test_a_program_that_computes_is_not(monkeypatch):
  monkeypatch.setattr(programs, '_MIN_CPU_SECS', 0.0)
  process = start('timeit', '-n1', '-r1', 'for i in range(30_000_000): pass')
  completed = process.wait_while_it_works(0.2)
  assert completed.returncode == 0
  assert '1 loop' in completed.stdout
