# SPDX-License-Identifier: Apache-2.0
"""Time and answers of --mode=aot: how long, how much memory, what MFU.

    python -m benchmarks.aot --exp=lm_cloud.LmCloudSpmd2BLimitSteps

One line for each experiment and check level, each in a process. It wants
the TPU compiler (docs/aot.md); without it levels 6 and 7 alone. --full lets
that try as hard as for a run, and tells the time that it reckons with.
"""

# bazel: deps=//pax/tasks:experiments
# bazel: deps=//pax:main_lib
from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

from benchmarks import measure

EXPERIMENTS = (
  'lm_cloud.LmCloudSpmd2BLimitSteps',
  'c4.C4Spmd1BAdam4Replicas',
  'c4.C4Spmd16BAdam32Replicas',
  'c4.C4SpmdPipelineGpt3SmallAdam64Replicas',
  'c4_multislice.C4Spmd22BAdam2xv4_128',
  'lm_cloud.LmCloudSpmd128B',
  'lm_cloud.LmCloudSpmd1024B',
)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--exp', action='append')
  parser.add_argument('--level', type=int, action='append')
  parser.add_argument('--full', action='store_true')
  options = parser.parse_args()
  for exp in options.exp or EXPERIMENTS:
    for level in options.level or (6, 7, 10):
      measure.report('aot', _measure(exp, level, options.full))


def _measure(exp: str, level: int, full: bool) -> dict[str, object]:
  """What one process takes, and what it tells."""
  with tempfile.TemporaryDirectory() as folder:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(
      [
        sys.executable, '-m', 'pax.main', f'--exp={exp}', '--mode=aot',
        f'--check_level={level}', f'--job_log_dir={folder}',
        *(['--aot_full_effort'] if full else []),
      ],
      env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
      stdout=subprocess.DEVNULL,
      check=False,
    )  # fmt: skip
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    (file,) = pathlib.Path(folder, 'aot').glob('*.json')
    told = json.loads(file.read_text())
  held, roof = told['memory'], told['roofline'] or {}
  guess = told['predicted']
  return {
    'exp': exp,
    'level': level,
    'topology': told['topology'],
    'exit_code': done.returncode,
    'wall_s': round(wall, 1),
    'cpu_s': round(
      after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1
    ),
    'compile_s': told['compile_s'],
    'bytes': held['total'],
    'predicted_bytes': guess
    and sum(guess[k] or 0 for k in guess if k != 'capacity'),
    'step_s': roof.get('step_s'),
    'mfu': roof.get('mfu'),
    'compiler_s': roof.get('compiler_s'),
    'compiler_mfu': roof.get('compiler_mfu'),
  }


if __name__ == '__main__':
  main()
