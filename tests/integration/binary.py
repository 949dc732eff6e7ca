# SPDX-License-Identifier: Apache-2.0
"""Starts the real program, as `python -m pax.main`, on tiny experiments."""

# bazel: deps=//pax:main_lib,//pax/tasks:experiments
# bazel: deps=//tests/integration:experiments
from __future__ import annotations

import functools
import json
import pathlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from pax.files import storage
from tests.testing import programs

EXPERIMENTS = 'tests.integration.experiments'
# Of waits for a job. One with TensorFlow takes 20 s on idle cores.
TIMEOUT_SECS = 600
# What a run imports on its way.
PRELOADED = (
  EXPERIMENTS,
  'matplotlib.backends.backend_agg',
  'matplotlib.figure',
  'pax.runner.runner',
  'tensorboardX',
)


def start(
  exp: str, job_log_dir: storage.Path, *words: str, devices: int = 1
) -> programs.Program:
  """Begins to train a tiny experiment, or one that a module names."""
  command = [
    'pax.main',
    f'--exp={exp if "." in exp else f"{EXPERIMENTS}.{exp}"}',
    f'--job_log_dir={job_log_dir}',
    f'--host_device_count={devices}',
    compilation_cache(),
    *words,
  ]
  return programs.Program(command, programs.environment(), PRELOADED)


def compilation_cache() -> str:
  """Returns the flag of compiled programs, which jobs of a process share."""
  return f'--compilation_cache_dir={_compiled().name}'


@functools.cache
def _compiled() -> tempfile.TemporaryDirectory[str]:
  return tempfile.TemporaryDirectory(prefix='pax_compiled_')


def run(
  exp: str, job_log_dir: storage.Path, *words: str, devices: int = 1
) -> subprocess.CompletedProcess[str]:
  """Trains, and returns exit code and output."""
  (completed,) = wait([start(exp, job_log_dir, *words, devices=devices)])
  return completed


def wait(
  processes: Sequence[programs.Program],
) -> list[subprocess.CompletedProcess[str]]:
  """Returns exit codes and outputs, as long as the processes compute."""
  return [process.wait_while_it_works(TIMEOUT_SECS) for process in processes]


def aot_report(job_log_dir: pathlib.Path, *flags: str) -> dict[str, Any]:
  """Compiles TinySpmd ahead of time and returns the JSON report."""
  completed = run('TinySpmd', job_log_dir, '--mode=aot', *flags)
  assert completed.returncode == 0, completed.stderr
  (file,) = (job_log_dir / 'aot').glob('*.json')
  return json.loads(file.read_text())


def start_processes(
  exp: str,
  job_log_dir: pathlib.Path,
  *words: str,
  count: int,
  devices: int,
  indices: Sequence[int] | None = None,
  port: int | None = None,
) -> list[programs.Program]:
  """Begins one run of `count` processes, with `devices` each.

  Args:
    exp: the experiment.
    job_log_dir: its directory.
    *words: further flags.
    count: number of processes of the run.
    devices: number of devices of each.
    indices: processes that are started; None starts all.
    port: that of process 0; None takes a free one.
  """
  address = f'localhost:{port or free_port()}'
  words += ('--multiprocess_gpu', f'--server_addr={address}')
  return [
    start(
      exp,
      job_log_dir,
      *words,
      f'--num_hosts={count}',
      f'--host_idx={index}',
      devices=devices,
    )
    for index in (range(count) if indices is None else indices)
  ]


def free_port() -> int:
  with socket.socket() as free:
    free.bind(('localhost', 0))
    return free.getsockname()[1]


def records(job_log_dir: storage.Path) -> list[dict[str, Any]]:
  """The lines of metrics.jsonl; one that a kill cut short is left out."""
  text = (job_log_dir / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines() if line[-1:] == '}']


def losses(job_log_dir: storage.Path) -> dict[int, float]:
  """The training loss of each step, as said last."""
  return {
    r['step']: r['loss'] for r in records(job_log_dir) if r['split'] == 'train'
  }


def loss_bits(job_log_dir: storage.Path) -> dict[int, bytes]:
  """Returns the bits of the training loss of each step."""
  return {
    step: np.float32(loss).tobytes()
    for step, loss in losses(job_log_dir).items()
  }


def wait_for_losses(job_log_dir: pathlib.Path, count: int) -> None:
  """Waits until a running job has reported so many losses.

  Raises:
    TimeoutError: it does not.
  """
  deadline = time.monotonic() + TIMEOUT_SECS
  while time.monotonic() < deadline:
    if (job_log_dir / 'metrics.jsonl').exists():
      if len(losses(job_log_dir)) >= count:
        return
    time.sleep(0.05)
  raise TimeoutError(f'{job_log_dir} has less than {count} losses')


def wait_for_file(path: pathlib.Path) -> None:
  """Waits until a running job has written a file."""
  deadline = time.monotonic() + TIMEOUT_SECS
  while not path.exists():
    assert time.monotonic() < deadline, f'{path} does not appear'
    time.sleep(0.01)


def checkpoint_names(job_log_dir: pathlib.Path) -> list[str]:
  return sorted(p.name for p in (job_log_dir / 'checkpoints').iterdir())
