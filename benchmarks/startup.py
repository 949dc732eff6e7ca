# SPDX-License-Identifier: Apache-2.0
"""Time from the start of a process to its first finished step.

    python -m benchmarks.startup

Starts `pax.main` on `experiments.Lm4x256Spmd` with a cold and with a warm
compilation cache, and the hand-written baseline; with a warm cache also without
Orbax, which a thread imports. Also measures `pax --help`, the import of
`pax.main` and the peak memory of each process. The processes share a cache of
bytecode, as installed packages have one; a round that is not measured fills it.
"""

# bazel: deps=//benchmarks:experiments
# bazel: deps=//benchmarks:baseline_lm_lib
# bazel: deps=//pax/tasks:experiments
# bazel: deps=//pax:main_lib
from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from benchmarks import measure

_STEPS = 3
_HELP = ('-m', 'pax.main', '--help')


def main() -> None:
  """Runs the programs in turn, and reports times, memory and ratios."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--repeats', type=int, default=3)
  repeats = parser.parse_args().repeats
  with tempfile.TemporaryDirectory() as bytecode:
    programs = _Programs(bytecode)
    programs.run_once()
    rounds = [programs.run_once() for _ in range(repeats)]
    imports = {
      'import_pax_main_s': programs.import_seconds('pax.main', repeats),
      'import_jax_s': programs.import_seconds('jax', repeats),
    }
  starts = {name: [r[name] for r in rounds] for name in rounds[0]}
  helps = starts.pop('pax_help')
  best = {name: _best(started) for name, started in starts.items()}
  peaks = {name: values['peak_rss_mib'] for name, values in best.items()}
  measure.report(
    'startup',
    {
      **imports,
      'pax_help_cpu_s': round(min(s.cpu_s for s in helps), 3),
      **best,
      **_ratios(starts),
      'rss_ratio': round(peaks['pax_cold'] / peaks['baseline'], 3),
    },
  )


def _ratios(starts: Mapping[str, list[_Started]]) -> dict[str, float]:
  """Returns medians over rounds of ratios of times to the first step."""
  pairs = {
    'cold_over_baseline': ('pax_cold', 'baseline'),
    'warm_over_baseline': ('pax_warm', 'baseline'),
    'warm_over_without_orbax': ('pax_warm', 'pax_warm_without_orbax'),
  }
  ratios = {}
  for name, (ours, theirs) in pairs.items():
    # Of wall times, and of CPU times, which hardly depend on other programs.
    ratios[name] = measure.ratio(
      [s.first_step_s for s in starts[ours]],
      [s.first_step_s for s in starts[theirs]],
    )
    ratios[f'{name}_cpu'] = measure.ratio(
      [s.first_step_cpu_s for s in starts[ours]],
      [s.first_step_cpu_s for s in starts[theirs]],
    )
  return ratios


@dataclasses.dataclass(frozen=True)
class _Started:
  """Times from start to the first step and to the exit, and peak memory."""

  first_step_s: float
  first_step_cpu_s: float
  cpu_s: float
  peak_rss_mib: float


class _Programs:
  """The programs, run by the same interpreter with the same bytecode."""

  def __init__(self, bytecode: str):
    self._env = {
      **os.environ,
      'JAX_PLATFORMS': 'cpu',
      'PYTHONPYCACHEPREFIX': bytecode,
    }
    self._env.pop('PYTHONDONTWRITEBYTECODE', None)

  def run_once(self) -> dict[str, _Started]:
    """Runs each program once; the first start of Pax has a cold cache."""
    with tempfile.TemporaryDirectory() as cache:
      return {
        'pax_cold': self._start_pax(cache),
        'pax_warm': self._start_pax(cache),
        'pax_warm_without_orbax': self._start_pax(
          cache, '--notensorstore_use_ocdbt'
        ),
        'baseline': self._start('-m', 'benchmarks.baseline_lm', str(_STEPS)),
        'pax_help': self._start(*_HELP, first_output='Trains the model'),
      }

  def import_seconds(self, module: str, repeats: int) -> float:
    """Returns the shortest time of an import in a new process."""
    code = (
      'import time; t = time.perf_counter();'
      f'import {module}; print(time.perf_counter() - t)'
    )
    command = [sys.executable, '-c', code]
    return round(
      min(
        float(subprocess.check_output(command, env=self._env))
        for _ in range(repeats)
      ),
      3,
    )

  def _start_pax(self, cache: str, *flags: str) -> _Started:
    with tempfile.TemporaryDirectory() as job_log_dir:
      return self._start(
        *('-m', 'pax.main', '--exp=benchmarks.experiments.Lm4x256Spmd'),
        f'--job_log_dir={job_log_dir}',
        f'--compilation_cache_dir={cache}',
        '--host_device_count=1',
        f'--set=task.train.num_train_steps={_STEPS}',
        *flags,
      )

  def _start(self, *args: str, first_output: str = 'step 1') -> _Started:
    """Runs a program until exit; a line of its output has `first_output`."""
    command = [sys.executable, *args]
    start = time.perf_counter()
    process = subprocess.Popen(
      command,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      env=self._env,
    )
    first_step, lines = None, []
    for line in process.stdout or ():
      lines.append(line)
      if first_step is None and first_output in line:
        first_step = time.perf_counter() - start, _cpu_seconds(process.pid)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or first_step is None:
      raise SystemExit(f'{command} failed:\n{"".join(lines)}')
    return _Started(
      *first_step,
      cpu_s=usage.ru_utime + usage.ru_stime,
      peak_rss_mib=usage.ru_maxrss / 1024,
    )


def _cpu_seconds(pid: int) -> float:
  """Returns the CPU time of a process so far, on Linux."""
  stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
  # User and system time, the 14th and 15th value; the 2nd may contain spaces.
  user, system = stat.rpartition(')')[2].split()[11:13]
  return (int(user) + int(system)) / os.sysconf('SC_CLK_TCK')


def _best(started: Sequence[_Started]) -> dict[str, float]:
  return {
    'first_step_s': round(min(s.first_step_s for s in started), 2),
    'median_s': round(statistics.median(s.first_step_s for s in started), 2),
    'first_step_cpu_s': round(min(s.first_step_cpu_s for s in started), 2),
    'cpu_s': round(min(s.cpu_s for s in started), 2),
    'peak_rss_mib': round(max(s.peak_rss_mib for s in started), 1),
  }


if __name__ == '__main__':
  main()
