# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
"""Jobs on each kind of data that are killed, stopped and continued.

A language model of one layer trains by `pax.main`. The losses of all its lives
are, bit by bit, those of a job that nothing interrupts.
"""

from __future__ import annotations

import signal

import numpy as np
import pytest

from pax import exit_codes
from tests.faults import harness
from tests.testing import data_sets

EXP = 'pax.tasks.lm.params.quickstart.TinyLm'
SETTINGS = {
  'BATCH_SIZE': 8,
  'CHECKPOINT_EVERY_N_STEPS': 20,
  'DATA_LAYOUT': None,
  'EVAL_ON_TEST': False,
  'HIDDEN_DIMS': 16,
  'MAX_SEQ_LEN': 16,
  'MODEL_DIMS': 16,
  'NUM_HEADS': 1,
  'NUM_LAYERS': 1,
  # Of the schedule; each life sets its own last step.
  'NUM_TRAIN_STEPS': 10**6,
  'SAMPLE_PROMPT': '',
  'SUMMARY_INTERVAL_STEPS': 1,
  'TOKENIZER': 'bytes',
  'VOCAB_SIZE': 512,
}


def make_job(directory, **settings) -> harness.Job:
  flags = [
    f'--set={name}={value}' for name, value in (SETTINGS | settings).items()
  ]
  return harness.Job(directory, exp=EXP, flags=flags)


def last_step(step: int) -> str:
  return f'--set=task.train.num_train_steps={step}'


def interrupt(job: harness.Job, number: int, victim: int = 0) -> list[int]:
  """Signals a process of a new life after its next checkpoint; its codes."""
  before = job.newest_step()
  life = job.start()
  harness.wait_until(
    lambda: job.newest_step() > before or not harness.is_running(life), life
  )
  life.signal(number, victim)
  completed = life.wait()
  assert job.newest_step() > before, [c.stderr for c in completed]
  return [c.returncode for c in completed]


def check_bits(job: harness.Job, reference: harness.Job) -> int:
  """Compares the losses of all lives; returns their number."""
  expected = dict(harness.loss_bits(reference.directory))
  written = harness.loss_bits(job.directory)
  compared = [(step, bits) for step, bits in written if step in expected]
  different = [step for step, bits in compared if bits != expected[step]]
  assert not different, f'losses differ from an uninterrupted run: {different}'
  assert {step for step, _ in compared} == set(expected)
  assert len(set(expected.values())) > 1
  return len(compared)


def data_settings(kind, folder, monkeypatch) -> dict:
  """Writes a data set; returns the constants that select it."""
  if kind == 'text_files':
    data_sets.write('txt', folder)
    return {'TRAIN_FILES': str(folder / '*.txt'), 'NUM_PIECES': None}
  if kind.startswith('grain'):
    data_sets.write('array_record', folder)
    path = str(folder / 'array_record_1.array_record')
    monkeypatch.setenv(data_sets.GRAIN_RECORDS, path)
    function = f'{data_sets.__name__}:grain_rows'
    workers = int(kind == 'grain_workers')
    return {'GRAIN_DATASET': function, 'GRAIN_WORKERS': workers}
  return {'TRAIN_DATA': data_sets.write(kind, folder)}


KINDS = (*data_sets.KINDS, 'text_files', 'grain', 'grain_workers')


@pytest.mark.parametrize('kind', KINDS)
def test_killed_and_stopped_jobs_repeat_no_batch(
  tmp_path, monkeypatch, report, kind
):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  (tmp_path / 'data').mkdir()
  settings = data_settings(kind, tmp_path / 'data', monkeypatch)
  job = make_job(tmp_path / 'job', **settings)
  assert interrupt(job, signal.SIGKILL) == [harness.KILLED]
  assert interrupt(job, signal.SIGTERM) == [harness.PREEMPTED]
  assert interrupt(job, signal.SIGKILL) == [harness.KILLED]
  end = last_step(job.newest_step() + 5)
  job.finish(end)
  reference = make_job(tmp_path / 'reference', **settings)
  reference.finish(end)
  report(kills=2, losses=check_bits(job, reference))


# Processes of each life; all but the last are killed.
COUNTS = (2, 1, 2)


@pytest.mark.parametrize('kind', ['megatron', 'mixture', 'grain'])
def test_another_number_of_processes(tmp_path, monkeypatch, report, kind):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  (tmp_path / 'data').mkdir()
  settings = data_settings(kind, tmp_path / 'data', monkeypatch)
  job = make_job(tmp_path / 'job', **settings)
  for count in COUNTS[:-1]:
    job.num_processes = count
    codes = interrupt(job, signal.SIGKILL, victim=count - 1)
    assert codes[-1] == harness.KILLED
  job.num_processes = COUNTS[-1]
  end = last_step(job.newest_step() + 5)
  job.finish(end)
  reference = make_job(tmp_path / 'reference', **settings)
  reference.finish(end)
  expected = dict(harness.loss_bits(reference.directory))
  written = dict(harness.loss_bits(job.directory))
  losses = [
    [np.frombuffer(run[step], np.float32)[0] for step in expected]
    for run in (written, expected)
  ]
  np.testing.assert_allclose(*losses, rtol=1e-5)
  report(kills=len(COUNTS) - 1, losses=len(expected))


@pytest.mark.parametrize('first_missing', [0, 4])
def test_data_that_hang_end_the_job(tmp_path, first_missing):
  job = harness.Job(
    tmp_path / 'job',
    exp='TinyHanging',
    flags=[
      '--hang_timeout_secs=10',
      f'--set=train_input.hangs_at={first_missing}',
    ],
  )
  (completed,) = job.start().wait()
  assert completed.returncode == exit_codes.HANG
  assert 'hang: no step for 10 s' in completed.stderr
  assert 'in get_next' in completed.stderr
  # The steps on the other batches are saved.
  assert job.newest_step() == first_missing
