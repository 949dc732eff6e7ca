# SPDX-License-Identifier: Apache-2.0
"""Every test and benchmark that needs a GPU, in minutes, into one JSON file.

    python -m benchmarks.gpu_suite --out=gpu.json

Each part is a process with a deadline; a part that fails or that finds no time
left does not stop the others. On a machine without Pax's dependencies,
`--carried` is a folder that `python -m benchmarks.gpu_carry` filled.
"""

# bazel: deps=//benchmarks:attention_lib
# bazel: deps=//benchmarks:gpu_lm_lib
# bazel: deps=//benchmarks:grouped_matmul_lib
# bazel: deps=//benchmarks:softmax_xent_lib
# bazel: deps=//pax:main_lib
# bazel: deps=//pax/tasks:experiments
from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

_ROOT = pathlib.Path(__file__).absolute().parents[1]
_TEST = 'tests/integration/gpu_nightly_test.py'
_MACHINE = """
import jax, json, subprocess
smi = ['nvidia-smi', '--query-gpu=name,driver_version,memory.total']
try:
  gpu = subprocess.run([*smi, '--format=csv,noheader'], capture_output=True,
                       text=True, check=True).stdout.strip()
except OSError as error:
  gpu = str(error)
device = jax.devices()[0]
print(json.dumps({'jax': jax.__version__, 'gpu': gpu,
                  'device': device.device_kind, 'platform': device.platform}))
"""
# The end of a part's output, kept with its lines of JSON.
_TAIL_CHARACTERS = 4000


@dataclasses.dataclass(frozen=True)
class Part:
  """A command and its deadline, in seconds."""

  name: str
  command: tuple[str, ...]
  seconds: float


def parts(tiny: bool, folder: str) -> list[Part]:
  """Returns the parts, the most wanted first; jobs write into `folder`."""
  python = sys.executable
  small = ('--tiny', '--rounds=2') if tiny else ('--rounds=10',)
  loss = ['--dims=2048', '--tokens=16384', '--vocab=51200', '--rounds=10']
  attention = ['--dtypes=bfloat16', '--tokens=16384', '--heads=16']
  attention += ['--lengths', '2048', '8192', '--head_dims', '64', '128']
  # Mixtral 8x7B's experts, and those of a device of Qwen3 30B-A3B.
  experts = ['--shapes', '8192x8x4096x14336', '32768x16x2048x768']
  experts += ['--rounds=10']
  job = [
    '--exp=tasks.lm.params.nvidia.NVIDIA1_3B',
    '--set=ICI_MESH_SHAPE=[1,1,1]',
    '--set=NUM_TRAIN_STEPS=60',
    '--set=task.train.save_interval_steps=1000000',
    '--pgle=auto',
  ]
  if tiny:
    loss = ['--dims=64', '--tokens=64', '--vocab=96', '--rounds=1']
    attention = ['--lengths', '64', '--tokens=64', '--head_dims', '16']
    attention += ['--rounds=1']
    experts = ['--shapes', '64x4x64x64', '--rounds=1']
    job = [
      '--exp=tasks.lm.params.quickstart.TinyLm',
      '--set=NUM_TRAIN_STEPS=30',
    ]
  return [
    Part('machine', (python, '-c', _MACHINE), 60),
    Part('tests', (python, '-m', 'pytest', '-q', '--tb=short', _TEST), 150),
    Part('gpu_lm', (python, '-m', 'benchmarks.gpu_lm', *small), 240),
    Part('softmax_xent', (python, '-m', 'benchmarks.softmax_xent', *loss), 90),
    *(
      Part(
        f'attention, {segments} segments',
        (
          *(python, '-m', 'benchmarks.attention', *attention),
          f'--segments={segments}',
        ),
        45,
      )
      for segments in (1, 8)
    ),
    Part(
      'grouped_matmul',
      (python, '-m', 'benchmarks.grouped_matmul', *experts),
      45,
    ),
    Part(
      'pgle',
      (python, '-m', 'pax.main', f'--job_log_dir={folder}/pgle', *job),
      120,
    ),
  ]


def run(part: Part, seconds: float, environment: dict[str, str]) -> Any:
  """Returns what a part printed and how it ended, as JSON."""
  start = time.monotonic()
  if seconds < 1:
    return {'part': part.name, 'ended': 'no time was left'}
  try:
    process = subprocess.run(
      part.command,
      cwd=_ROOT,
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      timeout=seconds,
    )
    output, ended = process.stdout, f'exit code {process.returncode}'
  except subprocess.TimeoutExpired as error:
    output = (error.stdout or b'').decode(errors='replace')
    ended = f'stopped after {seconds:.0f} s'
  return {
    'part': part.name,
    'ended': ended,
    'seconds': round(time.monotonic() - start, 1),
    'results': [
      json.loads(line)
      for line in output.splitlines()
      if line.startswith('{') and line.endswith('}')
    ],
    'output': output[-_TAIL_CHARACTERS:],
  }


def install(carried: pathlib.Path, site: pathlib.Path) -> None:
  """Installs the carried wheels into `site`, the extensions into the tree."""
  command = [sys.executable, '-m', 'pip', 'install', '--quiet', '--no-index']
  command += ['--no-deps', '--target', str(site)]
  subprocess.run([*command, *map(str, carried.glob('*.whl'))], check=True)
  extensions = carried / 'extensions'
  for path in extensions.rglob('*.so'):
    (_ROOT / path.relative_to(extensions)).write_bytes(path.read_bytes())


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--out', type=pathlib.Path, required=True)
  parser.add_argument('--minutes', type=float, default=8)
  parser.add_argument('--carried', type=pathlib.Path)
  parser.add_argument('--platform', default='cuda', help='of JAX')
  parser.add_argument('--tiny', action='store_true', help='small sizes')
  args = parser.parse_args()
  end = time.monotonic() + 60 * args.minutes
  environment = {**os.environ, 'JAX_PLATFORMS': args.platform}
  environment['PAX_NIGHTLY'] = '1'
  # The tests start jobs while their own process has the GPU.
  environment['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
  report: dict[str, Any] = {'date': datetime.date.today().isoformat()}
  report['parts'] = []
  with tempfile.TemporaryDirectory() as folder:
    if args.carried:
      install(args.carried, pathlib.Path(folder, 'site'))
      path = environment.get('PYTHONPATH', '')
      environment['PYTHONPATH'] = f'{folder}/site{os.pathsep}{path}'
    for part in parts(args.tiny, folder):
      left = min(part.seconds, end - time.monotonic())
      result = run(part, left, environment)
      report['parts'].append(result)
      # After each part, so that what is measured is not lost.
      args.out.write_text(json.dumps(report, indent=1) + '\n')
      print(part.name, result['ended'], flush=True)


if __name__ == '__main__':
  main()
