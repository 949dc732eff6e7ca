# SPDX-License-Identifier: Apache-2.0
"""Starts the quickstart as a newcomer does, and reads what it left."""

# bazel: deps=//pax:main_lib,//pax/tasks:experiments
from __future__ import annotations

import pathlib
import subprocess
import sys

from tests.integration import binary
from tests.testing import programs


def train(
  exp: str, job_dir: pathlib.Path, *settings: str, timeout: float
) -> subprocess.CompletedProcess[str]:
  """Trains an experiment of the quickstart in an interpreter of its own."""
  done = subprocess.run(
    [
      sys.executable,
      '-m',
      'pax.main',
      f'--exp=tasks.lm.params.quickstart.{exp}',
      f'--job_log_dir={job_dir}',
      '--compilation_cache_dir=',
      *(f'--set={setting}' for setting in settings),
    ],
    env=programs.environment(),
    capture_output=True,
    text=True,
    timeout=timeout,
  )
  assert done.returncode == 0, done.stderr
  return done


def bits_per_byte(job_dir: pathlib.Path, split: str) -> list[float]:
  tag = 'Metrics/bits_per_byte'
  return [r[tag] for r in binary.records(job_dir) if r['split'] == split]
