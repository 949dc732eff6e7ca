# SPDX-License-Identifier: Apache-2.0
"""Jobs that SIGKILL ends again and again, at named points or random moments.

Each life continues in the same directory, so that its start meets what the
kills before left. In the end every loss of every life equals that of an
uninterrupted run, bit by bit.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterable

from pax.files import storage
from tests.faults import harness, kill_points

SEED = 20261122
# Steps of one life, with a checkpoint every other step.
STEPS = 4
FLAGS = ('--set=SAVE_EVERY=2', '--set=task.train.save_max_to_keep=2')
LAYOUTS = {
  'spmd': ('WideSpmd', ()),
  'pmap_one_file': ('WidePmap', ()),
  'pmap_tensorstore': ('WidePmap', ('--pmap_use_tensorstore',)),
}
# Layouts and the one with a frozen checkpoint.
EXPERIMENTS = LAYOUTS | {'frozen': ('FrozenSpmd', ())}
MODES = {
  'asynchronous': (),
  'synchronous': ('--nojax_fully_async_checkpoint',),
}


def create_job(
  directory: storage.Path,
  layout: str,
  num_processes: int = 1,
  mode: str = 'asynchronous',
) -> harness.Job:
  """Returns a job that keeps two checkpoints.

  Args:
    directory: Its directory.
    layout: A key of `EXPERIMENTS`.
    num_processes: Number of processes.
    mode: A key of `MODES`.
  """
  exp, flags = EXPERIMENTS[layout]
  return harness.Job(
    directory,
    exp=f'{kill_points.__name__}.{exp}',
    flags=[*FLAGS, *flags, *MODES[mode]],
    num_processes=num_processes,
  )


def finish(job: harness.Job) -> int:
  """Trains a few steps more; returns the number of losses compared."""
  num_steps = job.newest_step() + STEPS
  job.finish(f'--set=NUM_STEPS={num_steps}')
  # The first one stays as that of its interval (save_keep_interval_duration).
  assert set(job.checkpoints()) <= {0, num_steps - 2, num_steps}
  assert job.newest_step() == num_steps
  assert not harness.leftovers(job.directory)
  return harness.check_losses(job, num_steps)


def kill_at_points(job: harness.Job, points: Iterable[str]) -> dict[str, int]:
  """Kills a life at each of the points; returns figures for the report."""
  # Three checkpoints, of which the oldest stays and the next save deletes one.
  job.finish(f'--set=NUM_STEPS={2 * STEPS}')
  kills = 0
  for point in points:
    life = job.start(
      f'--set=NUM_STEPS={job.newest_step() + STEPS}',
      env={kill_points.VARIABLE: point},
    )
    (completed,) = life.wait()
    assert completed.returncode == harness.KILLED, (point, completed)
    kills += 1
  return {'kills': kills, 'losses': finish(job)}


def kill_at_random(
  job: harness.Job, num_lives: int, part: int = 0
) -> dict[str, int]:
  """Kills lives between fork and end; returns figures for the report.

  Imports, restores, steps and saves are met.

  Args:
    job: The job.
    num_lives: Number of lives; one that ends first is not killed.
    part: Another number has other moments.
  """
  # The first start of a test compiles, and imports what the others have.
  job.finish(f'--set=NUM_STEPS={STEPS}')
  began = time.monotonic()
  job.finish(f'--set=NUM_STEPS={2 * STEPS}')
  duration = time.monotonic() - began
  chance, kills = random.Random(SEED + part), 0
  for _ in range(num_lives):
    life = job.start(f'--set=NUM_STEPS={job.newest_step() + STEPS}')
    time.sleep(chance.uniform(0, duration))
    life.signal(signal.SIGKILL)
    codes = {c.returncode for c in life.wait()}
    assert codes <= {harness.KILLED, harness.DONE}
    kills += harness.KILLED in codes
  assert kills
  losses = finish(job)
  return {'lives': job.num_lives, 'kills': kills, 'losses': losses}
