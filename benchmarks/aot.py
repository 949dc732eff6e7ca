# SPDX-License-Identifier: Apache-2.0
"""Time, memory and predicted MFU of --mode=aot.

    python -m benchmarks.aot --exp=lm_cloud.LmCloudSpmd2BLimitSteps

One line and one process per experiment and check level. Levels below 6 need the
TPU compiler (docs/aot.md). --full compiles at full effort and adds XLA's
estimated step time.
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
  """Time and memory of one process, and its report."""
  with tempfile.TemporaryDirectory() as folder:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    process = subprocess.run(
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
    report = json.loads(file.read_text())
  memory, roofline = report['memory'], report['roofline'] or {}
  predicted = report['predicted']
  return {
    'exp': exp,
    'level': level,
    'topology': report['topology'],
    'exit_code': process.returncode,
    'wall_s': round(wall, 1),
    'cpu_s': round(
      after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1
    ),
    'compile_s': report['compile_s'],
    'bytes': memory['total'],
    'predicted_bytes': predicted
    and sum(predicted[k] or 0 for k in predicted if k != 'capacity'),
    'step_s': roofline.get('step_s'),
    'mfu': roofline.get('mfu'),
    'compiler_s': roofline.get('compiler_s'),
    'compiler_mfu': roofline.get('compiler_mfu'),
  }


if __name__ == '__main__':
  main()
