# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
# bazel: data=//:all_files
# bazel: deps=//tests/multiprocess:experiments
"""One of several processes is killed: the others name it, and all continue."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.faults import harness
from tests.integration import binary
from tests.testing import programs

# Of each survivor, from the death of the other one.
PROMISED_SECS = 15
JOIN_SECS = 10
FLAGS = (
  '--set=SAVE_EVERY=1',
  '--set=SECONDS=0.05',
  f'--set=NUM_STEPS={10**6}',
)
DOCS = pathlib.Path(__file__).parents[2] / 'docs' / 'launching.md'
MOMENTS = ('join', 'compile', 'loop', 'save', 'eval')


def _wait_for(moment, job, life, victim, before):
  """Waits until the job, which began as `before`, is at a moment."""

  def reached():
    if moment == 'compile':
      return _size(job, victim) > before['size']
    if moment == 'save':
      has_begun = _num_losses(job) > before['losses']
      return has_begun and _unfinished(job) - before['unfinished']
    # All batches of the evaluation after the first step: it does not end.
    steps = 1 if moment == 'eval' else 3
    return _num_losses(job) >= before['losses'] + steps

  if moment != 'join':
    harness.wait_until(reached, life)


def _state(job, victim):
  return {
    'size': _size(job, victim),
    'unfinished': _unfinished(job),
    'losses': _num_losses(job),
  }


def _unfinished(job):
  folder = job.directory / 'checkpoints'
  names = os.listdir(folder) if folder.exists() else []
  return {name for name in names if name.startswith('tmp_')}


def _size(job, process):
  log = job.directory / 'logs' / f'train_{process}.log'
  return log.stat().st_size if log.exists() else 0


def _num_losses(job):
  if not (job.directory / 'metrics.jsonl').exists():
    return 0
  return sum(r['split'] == 'train' for r in harness.records(job.directory))


def _check_survivor(process, name, moment, deadline):
  completed = process.wait(max(deadline - time.monotonic(), 0.1))
  assert completed.returncode == 76, (moment, name, completed)
  assert completed.stderr.count('pax: error: ') == 1, completed.stderr
  ends = r'\(host .+\) is gone: ' + '|did not join' * (moment == 'join')
  assert re.search(f'pax: error: {name} .*({ends})', completed.stderr), (
    completed.stderr
  )
  assert 'stack trace' not in completed.stderr
  assert 'Traceback' not in completed.stderr


@pytest.mark.parametrize('num_processes', [2, 4])
def test_every_moment(tmp_path, report, num_processes):
  """A chain of lives of one job, each of which loses a process."""
  job = harness.Job(tmp_path / 'job', flags=FLAGS, num_processes=num_processes)
  for moment in MOMENTS:
    for victim in (0, num_processes - 1):
      before = _state(job, victim)
      job.exp = 'TinyLongEval' if moment == 'eval' else 'TinySpmd'
      flags = [f'--initialization_timeout_secs={JOIN_SECS}']
      if moment == 'eval':
        flags += ['--eval_on_test', '--set=EVAL_EVERY=1']
      elif moment != 'join':
        flags = []
      life = job.start(*flags)
      _wait_for(moment, job, life, victim, before)
      life.signal(signal.SIGKILL, victim)
      secs = PROMISED_SECS + JOIN_SECS * (moment == 'join')
      deadline = time.monotonic() + secs
      for index, process in enumerate(life.processes):
        if index != victim:
          name = f'process {victim} of {num_processes}'
          _check_survivor(process, name, moment, deadline)
      life.processes[victim].wait()
      report(kills=1)
  job.exp = 'TinySpmd'
  steps = [r['step'] for r in harness.records(job.directory) if 'step' in r]
  num_steps = max(steps) + 2
  job.finish(f'--set=NUM_STEPS={num_steps}')
  report(losses=harness.check_losses(job, num_steps))


def test_the_documented_loop_restarts_all(tmp_path, report):
  """On each of two hosts; the second process is killed once."""
  lines = re.search(
    r'(?m)^    trap .*?^    exit \$code$', DOCS.read_text(), re.DOTALL
  )[0]
  python = f'{sys.executable} -m pax.main'
  script = f'pax() {{ {python} "$@"; }}\n{textwrap.dedent(lines)}'
  num_steps = 16
  job = harness.Job(tmp_path / 'job', num_processes=2)
  words = [
    '--exp=tests.multiprocess.experiments.TinyKilled',
    *(f'--job_log_dir={job.directory}', '--host_device_count=1'),
    *(binary.compilation_cache(), '--set=ICI_MESH_SHAPE=[1,2,1]'),
    *('--set=BATCH_SIZE=4', '--set=SAVE_EVERY=2', '--set=SECONDS=0.1'),
    f'--set=NUM_STEPS={num_steps}',
    f'--set=train_input.done={tmp_path / "done"}',
    *(f'--server_addr=localhost:{binary.free_port()}', '--num_hosts=2'),
  ]
  loops = [
    subprocess.Popen(
      ['bash', '-c', script, 'bash', *words, f'--host_idx={index}'],
      env=programs.environment(),
      stderr=subprocess.PIPE,
      text=True,
    )
    for index in range(2)
  ]
  errors = [loop.communicate(timeout=harness.TIMEOUT_SECS)[1] for loop in loops]
  assert [loop.returncode for loop in loops] == [0, 0], errors
  assert re.search(r'process 1 of 2 \(host .+\) is gone: ', errors[0])
  report(losses=harness.check_losses(job, num_steps))
