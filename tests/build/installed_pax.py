# SPDX-License-Identifier: Apache-2.0
"""Short uses of a Pax that is installed in a virtual environment."""

from __future__ import annotations

import os
import pathlib
import subprocess

_STEPS = 5
_FLAGS = (
  '--exp=tasks.lm.params.quickstart.TinyLm',
  '--job_log_dir=job',
  '--set=NUM_LAYERS=1',
  '--set=MODEL_DIMS=16',
  '--set=HIDDEN_DIMS=32',
  '--set=MAX_SEQ_LEN=32',
  '--set=NUM_PIECES=None',
  '--set=TRAIN_FILES=text',
  '--set=HELD_OUT_PERCENT=20',
  f'--set=task.train.num_train_steps={_STEPS}',
)


def train(environment: pathlib.Path, folder: pathlib.Path) -> None:
  """Trains a small TinyLm for five steps, and finds its checkpoint.

  Args:
    environment: a virtual environment with Pax.
    folder: an empty folder, where it trains.
  """
  (folder / 'text').mkdir()
  for i in range(30):
    (folder / f'text/{i}').write_text(f'This is text {i}.\n' * 30)
  done = subprocess.run(
    [environment / 'bin/paxrun', *_FLAGS],
    cwd=folder,
    env={
      'HOME': str(folder),
      'JAX_DISABLE_MOST_OPTIMIZATIONS': '1',
      'JAX_PLATFORMS': 'cpu',
    },
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert (folder / f'job/checkpoints/checkpoint_{_STEPS:08d}').exists()


def import_all(environment: pathlib.Path) -> None:
  """Imports a module of paxml and both extensions.

  Args:
    environment: a virtual environment with Pax.
  """
  code = (
    'import paxml.learners as x, pax.learners as y; assert x is y;'
    'from praxis.kernels import _native; assert _native.cpu_isa();'
    'from pax.inputs import _host'
  )
  python = environment / 'bin/python'
  variables = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
  subprocess.run([python, '-c', code], check=True, cwd='/', env=variables)
