# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
"""SIGKILL at every call that changes a file, and at random moments.

Each life of a job is killed at another call; the next one continues in the same
directory, so that its start meets what the kills before left. In the end every
loss of every life equals that of an uninterrupted run, bit by bit.
"""

from __future__ import annotations

import random
import re

import pytest

from tests.faults import harness

SEED = 20261122
# Steps of one life, with a checkpoint every other step.
STEPS = 4
FLAGS = ('--set=SAVE_EVERY=2', '--set=task.train.save_max_to_keep=2')
LAYOUTS = {
  'spmd': ('TinySpmd', ()),
  'pmap_one_file': ('TinyPmap', ()),
  'pmap_tensorstore': ('TinyPmap', ('--pmap_use_tensorstore',)),
}
# Parts of names that differ between equal calls.
_VARIABLE = (
  (re.compile(r'\.[0-9a-f]{12}\.part'), '.part'),
  (re.compile(r'/state/[^/]+'), '/state/LEAF'),
  (re.compile(r'events\.out\.\S+'), 'events'),
  (re.compile(r'/0(\.0)*(?=$|\.__lock)'), '/CHUNK'),
  (re.compile(r'(?<=checkpoint_)\d+'), 'STEP'),
)


def _job(directory, layout, num_processes=1):
  exp, flags = LAYOUTS[layout]
  return harness.Job(
    directory, exp=exp, flags=[*FLAGS, *flags], num_processes=num_processes
  )


def _calls(job, tmp_path, *flags, process=0):
  """Returns the calls of a life without a fault, without variable parts."""
  log = tmp_path / f'calls_{job.num_lives}'
  fault = harness.Fault(log=log)
  life = job.start(*flags, fault=fault, faulty_process=process)
  completed = life.wait()
  assert not any(c.returncode for c in completed), completed
  return [_name(line, job.directory) for line in log.read_text().splitlines()]


def _name(line, directory):
  name = line.replace(str(directory), '')
  for pattern, text in _VARIABLE:
    name = pattern.sub(text, name)
  return name


def _choose(names, chance, num_random):
  """Returns the indices, from 1, of the first and last call of each name.

  And `num_random` others.
  """
  last = {name: i for i, name in enumerate(names, 1)}
  chosen = {*last.values(), *(names.index(name) + 1 for name in last)}
  others = [i for i in range(1, len(names) + 1) if i not in chosen]
  chosen.update(chance.sample(others, min(num_random, len(others))))
  return sorted(chosen)


class _Chain:
  """Lives of one job, each of which a fault ends."""

  def __init__(self, job, tmp_path, process=0):
    self._job, self._process = job, process
    self._log = tmp_path / 'log'
    self.points = set()
    self.kills = 0

  def live(self, at, *, torn, from_scratch=False):
    """Runs a life that is to die at call `at`."""
    job = self._job
    last = STEPS if from_scratch else job.newest_step() + STEPS
    self._log.unlink(missing_ok=True)
    fault = harness.Fault(
      at=at, action='torn' if torn else 'kill', log=self._log
    )
    life = job.start(
      f'--set=NUM_STEPS={last}', fault=fault, faulty_process=self._process
    )
    completed = life.wait_for_one(self._process)
    code = completed[self._process].returncode
    assert code in (harness.KILLED, harness.DONE), (at, completed)
    if code == harness.KILLED:
      self.kills += 1
      line = self._log.read_text().splitlines()[-1]
      self.points.add(_name(line, job.directory))

  def finish(self, report):
    """Ends the job, and checks its losses and files."""
    job = self._job
    num_steps = job.newest_step() + STEPS
    job.finish(f'--set=NUM_STEPS={num_steps}')
    losses = harness.check_losses(job, num_steps)
    # The first one stays as that of its interval (save_keep_interval_duration).
    assert set(job.checkpoints()) <= {0, num_steps - 2, num_steps}
    assert job.newest_step() == num_steps
    assert not harness.leftovers(job.directory)
    report(
      lives=job.num_lives,
      kills=self.kills,
      points=len(self.points),
      losses=losses,
    )


@pytest.mark.parametrize('layout', LAYOUTS)
def test_every_call_of_a_job_that_continues(tmp_path, report, layout):
  """The first and the last call of each name, whole and torn, and others."""
  chance = random.Random(SEED)
  job = _job(tmp_path / 'job', layout)
  job.finish('--set=NUM_STEPS=4')
  names = _calls(job, tmp_path, f'--set=NUM_STEPS={4 + STEPS}')
  chain = _Chain(job, tmp_path)
  for at in _choose(names, chance, 10):
    chain.live(at, torn=chance.random() < 0.5)
  chain.finish(report)
  # Most lives reach their call, though threads change the order of calls.
  assert chain.kills > 0.8 * (job.num_lives - 3)
