# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
# bazel: deps=//tests/pax/runner:failing_pair
"""Two real processes of a script, of which one fails."""

from __future__ import annotations

import signal
import subprocess

from tests.integration import binary
from tests.testing import programs


def _run(fault: str) -> list[subprocess.CompletedProcess[str]]:
  """Returns how both processes ended."""
  address = f'localhost:{binary.free_port()}'
  processes = [
    programs.Program(
      ['tests.pax.runner.failing_pair', address, str(index), fault],
      programs.environment(),
      binary.PRELOADED,
    )
    for index in range(2)
  ]
  return binary.wait(processes)


def test_the_loss_of_a_process_explains_an_exception_of_gloo():
  first, second = _run('death')
  assert second.returncode == -signal.SIGKILL, second.stderr
  assert first.returncode == 76, first.stderr
  assert first.stderr.count('pax: error: process 1 of 2 (host ') == 1
  assert 'gloo::' not in first.stderr


def test_an_exception_of_gloo_without_a_loss_aborts():
  first, second = _run('mismatch')
  assert first.returncode == -signal.SIGABRT, first.stderr
  assert 'Is there a distributed collective mismatch' in first.stderr
  assert second.returncode == 76, second.stderr
  assert 'pax: error: process 0 of 2 (host ' in second.stderr


def test_an_exception_of_a_script_is_the_end_of_both():
  first, second = _run('exception')
  assert [first.returncode, second.returncode] == [1, 1], first.stderr
  assert 'ValueError: process 1 fails' in second.stderr
  assert 'ended with exit code 1;' in first.stderr
  assert '. Its error: process 1 fails' in first.stderr
