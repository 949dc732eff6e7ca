# SPDX-License-Identifier: Apache-2.0
"""Time from the start of a process to its first finished step.

    python -m benchmarks.startup

Starts `pax.main` on `experiments.Lm4x256Spmd` with a cold and with a warm
compilation cache, and the hand-written baseline; with a warm cache also without
Orbax, which a thread imports. Also measures the import of `pax.main` and the
peak memory of each process.
"""

# bazel: deps=//benchmarks:experiments
# bazel: deps=//benchmarks:baseline_lm_lib
# bazel: deps=//pax/tasks:experiments
# bazel: deps=//pax:main_lib
from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks import measure

_STEPS = 3


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--repeats', type=int, default=3)
  repeats = parser.parse_args().repeats
  cold, warm, without_orbax, baselines = [], [], [], []
  for _ in range(repeats):
    with tempfile.TemporaryDirectory() as cache:
      cold.append(_start_pax(cache))
      warm.append(_start_pax(cache))
      without_orbax.append(_start_pax(cache, '--notensorstore_use_ocdbt'))
    baselines.append(
      _start([sys.executable, '-m', 'benchmarks.baseline_lm', str(_STEPS)])
    )
  line = {
    'pax_cold': _best(cold),
    'pax_warm': _best(warm),
    'pax_warm_without_orbax': _best(without_orbax),
    'warm_over_without_orbax': measure.ratio(
      [s.first_step_s for s in warm], [s.first_step_s for s in without_orbax]
    ),
    # Hardly depends on other programs.
    'warm_cpu_over_without_orbax': measure.ratio(
      [s.cpu_s for s in warm], [s.cpu_s for s in without_orbax]
    ),
    'baseline': _best(baselines),
    'import_pax_main_s': _import_seconds('pax.main', repeats),
    'import_jax_s': _import_seconds('jax', repeats),
  }
  peak = line['baseline']['peak_rss_mib']
  line['rss_ratio'] = round(line['pax_cold']['peak_rss_mib'] / peak, 3)
  measure.report('startup', line)


class _Started:
  """Time to the first step, peak memory and CPU time of a process."""

  def __init__(self, first_step_s: float, peak_rss_mib: float, cpu_s: float):
    self.first_step_s = first_step_s
    self.peak_rss_mib = peak_rss_mib
    self.cpu_s = cpu_s


def _start_pax(cache: str, *flags: str) -> _Started:
  with tempfile.TemporaryDirectory() as job_log_dir:
    return _start(
      [
        *(sys.executable, '-m', 'pax.main'),
        '--exp=benchmarks.experiments.Lm4x256Spmd',
        f'--job_log_dir={job_log_dir}',
        f'--compilation_cache_dir={cache}',
        '--host_device_count=1',
        f'--set=task.train.num_train_steps={_STEPS}',
        *flags,
      ]
    )


def _start(command: Sequence[str]) -> _Started:
  """Runs a program until exit; its output has a line with `step 1`."""
  start = time.perf_counter()
  env = {**os.environ, 'JAX_PLATFORMS': 'cpu'}
  process = subprocess.Popen(
    command,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    env=env,
  )
  first_step, lines = None, []
  for line in process.stdout:
    lines.append(line)
    if first_step is None and 'step 1' in line:
      first_step = time.perf_counter() - start
  _, status, usage = os.wait4(process.pid, 0)
  process.returncode = os.waitstatus_to_exitcode(status)
  if process.returncode or first_step is None:
    raise SystemExit(f'{command} failed:\n{"".join(lines)}')
  return _Started(
    first_step, usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime
  )


def _best(started: Sequence[_Started]) -> dict[str, float]:
  return {
    'first_step_s': round(min(s.first_step_s for s in started), 2),
    'median_s': round(statistics.median(s.first_step_s for s in started), 2),
    'cpu_s': round(min(s.cpu_s for s in started), 2),
    'peak_rss_mib': round(max(s.peak_rss_mib for s in started), 1),
  }


def _import_seconds(module: str, repeats: int) -> float:
  code = (
    'import time; t = time.perf_counter();'
    f'import {module}; print(time.perf_counter() - t)'
  )
  seconds = [
    float(subprocess.check_output([sys.executable, '-c', code]))
    for _ in range(repeats)
  ]
  return round(min(seconds), 3)


if __name__ == '__main__':
  main()
