# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: shards=4
# bazel: tags=nightly
"""SIGKILL at named points, every call that changes a file, random moments.

Each life of a job is killed at another call; the next one continues in the same
directory, so that its start meets what the kills before left. In the end every
loss of every life equals that of an uninterrupted run, bit by bit.
"""

from __future__ import annotations

import random
import re
import shutil

import pytest

from tests.faults import harness, kill_matrix, kill_points

# Parts of names that differ between equal calls.
_VARIABLE = (
  (re.compile(r'\.[0-9a-f]{12}\.part'), '.part'),
  (re.compile(r'/[0-9a-f]{32}(?=$|\.__lock)'), '/DATA'),
  (re.compile(r'/state/[^/]+'), '/state/LEAF'),
  (re.compile(r'events\.out\.\S+'), 'events'),
  (re.compile(r'/0(\.0)*(?=$|\.__lock)'), '/CHUNK'),
  (re.compile(r'(?<=checkpoint_)\d+'), 'STEP'),
)


def _calls(job, tmp_path, *flags, process=0):
  """Returns the calls of a life without a fault, without variable parts."""
  log = tmp_path / f'calls_{job.num_lives}'
  life = job.start(*flags, fault=harness.Fault(log=log), faulty_process=process)
  completed = life.wait()
  assert not any(c.returncode for c in completed), completed
  return [_name(line, job.directory) for line in log.read_text().splitlines()]


def _name(line, directory):
  name = line.replace(str(directory), '')
  for pattern, text in _VARIABLE:
    name = pattern.sub(text, name)
  return name


def _choose(names, num_random):
  """Returns the indices, from 1, of the first and last call of each name.

  And `num_random` others.
  """
  last = {name: i for i, name in enumerate(names, 1)}
  chosen = {*last.values(), *(names.index(name) + 1 for name in last)}
  others = [i for i in range(1, len(names) + 1) if i not in chosen]
  sample = random.Random(kill_matrix.SEED).sample(
    others, min(num_random, len(others))
  )
  return sorted(chosen.union(sample))


class _Chain:
  """Lives of one job, each of which ends at another call."""

  def __init__(self, job, tmp_path, process=0):
    self._job, self._process = job, process
    self._log = tmp_path / 'last_calls'
    self._chance = random.Random(kill_matrix.SEED)
    self._points = set()
    self.kills = self.lives = 0

  def live(self, at, *flags):
    """Runs a life that dies at call `at`, unless it ends before."""
    self._log.unlink(missing_ok=True)
    action = self._chance.choice(['kill', 'torn'])
    life = self._job.start(
      *flags,
      fault=harness.Fault(at=at, action=action, log=self._log),
      faulty_process=self._process,
    )
    completed = life.wait_for_one(self._process)[self._process]
    assert completed.returncode in (harness.KILLED, harness.DONE), completed
    self.lives += 1
    if completed.returncode == harness.KILLED:
      self.kills += 1
      line = self._log.read_text().splitlines()[-1]
      self._points.add(_name(line, self._job.directory))

  def report(self, report, **figures):
    # A life may have fewer calls than the one that was counted.
    assert self.kills > 0.6 * self.lives
    report(
      lives=self._job.num_lives,
      kills=self.kills,
      calls=len(self._points),
      **figures,
    )


@pytest.mark.parametrize('layout', kill_matrix.LAYOUTS)
def test_every_call_of_a_job_that_continues(tmp_path, report, layout):
  """The first and the last call of each name, and others; writes also torn."""
  job = kill_matrix.create_job(tmp_path / 'job', layout)
  job.finish(f'--set=NUM_STEPS={kill_matrix.STEPS}')
  names = _calls(job, tmp_path, f'--set=NUM_STEPS={2 * kill_matrix.STEPS}')
  chosen = _choose(names, 10)
  if layout == 'pmap_tensorstore':
    # The calls of SPMD.
    chosen = sorted(random.Random(kill_matrix.SEED).sample(chosen, 40))
  chain = _Chain(job, tmp_path)
  for at in chosen:
    chain.live(at, f'--set=NUM_STEPS={job.newest_step() + kill_matrix.STEPS}')
  chain.report(report, losses=kill_matrix.finish(job))


@pytest.mark.parametrize('layout', ['spmd', 'pmap_one_file', 'frozen'])
def test_every_call_until_the_first_checkpoint(tmp_path, report, layout):
  """In one directory, in which each life starts from scratch."""
  steps = f'--set=NUM_STEPS={kill_matrix.STEPS}'
  names = _calls(
    kill_matrix.create_job(tmp_path / 'counted', layout), tmp_path, steps
  )
  commit = names.index('rename /checkpoints/checkpoint_STEP')
  job = kill_matrix.create_job(tmp_path / 'job', layout)
  chain = _Chain(job, tmp_path)
  for at in _choose(names[: commit + 1], 0):
    chain.live(at, steps)
  chain.report(report, losses=kill_matrix.finish(job))
  frozen = list(job.directory.glob('checkpoints/frozen_00000000_*'))
  assert len(frozen) == (layout == 'frozen')


@pytest.mark.parametrize('process', [0, 1])
@pytest.mark.parametrize('layout', kill_matrix.LAYOUTS)
def test_calls_of_one_of_two_processes(tmp_path, report, layout, process):
  """The other one is killed later, as a cluster does."""
  job = kill_matrix.create_job(tmp_path / 'job', layout, num_processes=2)
  job.finish(f'--set=NUM_STEPS={kill_matrix.STEPS}')
  steps = f'--set=NUM_STEPS={2 * kill_matrix.STEPS}'
  names = _calls(job, tmp_path, steps, process=process)
  chosen = random.Random(kill_matrix.SEED).sample(_choose(names, 0), 8)
  chain = _Chain(job, tmp_path, process)
  for at in sorted(chosen):
    chain.live(at, f'--set=NUM_STEPS={job.newest_step() + kill_matrix.STEPS}')
  chain.report(report, losses=kill_matrix.finish(job))


@pytest.mark.parametrize('mode', kill_matrix.MODES)
@pytest.mark.parametrize('layout', kill_matrix.LAYOUTS)
def test_named_points(tmp_path, report, layout, mode):
  """Of saving, committing, deleting and restoring."""
  job = kill_matrix.create_job(tmp_path / 'job', layout, mode=mode)
  points = kill_points.points(layout, is_bucket=False)
  report(**kill_matrix.kill_at_points(job, points))


@pytest.mark.parametrize('mode', kill_matrix.MODES)
@pytest.mark.parametrize('num_processes', [1, 2])
@pytest.mark.parametrize('layout', kill_matrix.LAYOUTS)
def test_random_moments(tmp_path, report, layout, num_processes, mode):
  """All together more than 200 times."""
  job = kill_matrix.create_job(tmp_path / 'job', layout, num_processes, mode)
  num_lives = 32 if num_processes == 1 else 8
  report(**kill_matrix.kill_at_random(job, num_lives))


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A directory with the checkpoints of steps 0, 2 and 4."""
  job = kill_matrix.create_job(
    tmp_path_factory.mktemp('trained') / 'job', 'spmd'
  )
  job.finish('--set=NUM_STEPS=4')
  return job.directory


def _results(directory):
  """Returns outputs by path, and the metrics of each split and step."""
  files = {
    str(path.relative_to(directory)): path.read_bytes()
    for folder in ('decoder_out', 'eval_out', 'output')
    for path in directory.glob(f'{folder}/**/*')
    if path.is_file() and path.suffix != '.part'
  }
  # Created at each start.
  metadata = 'output/prompts/metadata.json'
  if metadata in files:
    files[metadata] = b''
  metrics = {
    (r['split'], r['step']): {k: v for k, v in r.items() if k not in _TIMES}
    for r in harness.records(directory)
    if r['split'] != 'train'
  }
  return files, metrics


# Values of metrics.jsonl that differ between equal runs.
_TIMES = ('time', 'Steps/sec')


@pytest.mark.parametrize('mode', ['eval', 'decode', 'decode_once', 'infer'])
def test_every_call_of_other_modes(tmp_path, report, trained, mode):
  """A file of outputs is complete at any time, and equal in the end."""
  for name in ('counted', 'job'):
    shutil.copytree(trained, tmp_path / name)
  counted, job = (
    kill_matrix.create_job(tmp_path / name, 'spmd')
    for name in ('counted', 'job')
  )
  for either in (counted, job):
    either.flags = [f'--mode={mode}', '--set=NUM_STEPS=4']
  names = _calls(counted, tmp_path)
  files, metrics = _results(counted.directory)
  assert files or metrics
  chain = _Chain(job, tmp_path)
  compared = 0
  for at in range(1, len(names) + 1):
    chain.live(at)
    complete, _ = _results(job.directory)
    assert complete.items() <= files.items()
    compared += len(complete)
  job.finish()
  assert _results(job.directory) == (files, metrics)
  assert not harness.leftovers(job.directory)
  assert not list(job.directory.glob('_internal_artifacts/*progress.json'))
  chain.report(report, outputs=compared + len(files) + len(metrics))
