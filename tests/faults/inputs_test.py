# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
"""Jobs on each kind of data that are killed, stopped and continued.

Small models train by `pax.main`. The losses of all lives of a job are, bit by
bit, those of a job that nothing interrupts.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pax import exit_codes
from pax.inputs.tokens import tokenizers
from tests.faults import harness
from tests.integration import binary, vision_experiments
from tests.pax.huggingface import reference_models
from tests.pax.tasks.lm import bert_records
from tests.pax.tasks.vision import jpegs
from tests.testing import data_sets, polling, programs

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
  if kind == 'stages':
    first, second = (data_sets.write(x, folder) for x in ('megatron', 'npy'))
    mixture = {first: 0.5, second: 0.5}
    stages = {50: mixture, 150: {second: 1.0}, 401: mixture}
    return {'TRAIN_DATA': first, 'TRAIN_DATA_STAGES': stages}
  if kind == 'hub':
    pytest.importorskip('datasets')
    data_sets.write('jsonl', folder)
    return {'TRAIN_DATA': f'hf://{folder}'}
  return {'TRAIN_DATA': data_sets.write(kind, folder)}


KINDS = (
  *data_sets.KINDS,
  'hub',
  'text_files',
  'grain',
  'grain_workers',
  'stages',
)


@pytest.mark.parametrize('kind', KINDS)
def test_killed_and_stopped_jobs_repeat_no_batch(
  tmp_path, monkeypatch, report, kind
):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  (tmp_path / 'data').mkdir()
  settings = data_settings(kind, tmp_path / 'data', monkeypatch)
  job = make_job(tmp_path / 'job', **settings)
  reference = make_job(tmp_path / 'reference', **settings)
  report(kills=2, losses=interrupt_three_times(job, reference))


def interrupt_three_times(job: harness.Job, reference: harness.Job) -> int:
  """Kills, stops and kills a job; returns the number of losses compared."""
  assert interrupt(job, signal.SIGKILL) == [harness.KILLED]
  assert interrupt(job, signal.SIGTERM) == [harness.PREEMPTED]
  assert interrupt(job, signal.SIGKILL) == [harness.KILLED]
  end = last_step(job.newest_step() + 5)
  job.finish(end)
  reference.finish(end)
  return check_bits(job, reference)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
  """An experiment on data of its own."""

  exp: str
  # Writes the data into a folder; returns the constants that make it small.
  settings: Callable[[pathlib.Path], dict[str, Any]]
  rows_constant: str = 'BATCH_SIZE'
  mesh_constant: str = 'ICI_MESH_SHAPE'

  def make_job(
    self, directory: pathlib.Path, data: pathlib.Path
  ) -> harness.Job:
    settings = {
      # Of the schedule; each life sets its own last step.
      'task.train.num_train_steps': 10**6,
      'task.train.save_interval_steps': 20,
      'task.train.summary_interval_steps': 1,
      'task.train.eval_interval_steps': 10**6,
      **self.settings(data),
    }
    return harness.Job(
      directory,
      exp=self.exp,
      flags=[f'--set={name}={value}' for name, value in settings.items()],
      rows_constant=self.rows_constant,
      mesh_constant=self.mesh_constant,
    )


def bert_settings(folder: pathlib.Path) -> dict[str, Any]:
  for i in range(2):
    records = bert_records.counting(40, 16, seed=i)
    bert_records.write(folder / f'train-{i}', records)
  return {
    'TRAIN_FILES': f'{folder}/train-*',
    'EVAL_FILES': f'{folder}/train-0',
    'MAX_SEQ_LEN': 16,
    'NUM_LAYERS': 1,
    'MODEL_DIMS': 16,
    'HIDDEN_DIMS': 32,
    'NUM_HEADS': 2,
    'VOCAB_SIZE': 256,
    'RANDOM_BUFFER_SIZE': 30,
    'train_input.prepacking_batch_size': 32,
    'train_input.mlm_augmenter.vocab_size': 256,
  }


def image_settings(folder: pathlib.Path) -> dict[str, Any]:
  jpegs.write(folder, 'train', 20)
  jpegs.write(folder, 'validation', 8)
  return {'DATA_DIR': folder}


def digit_settings(folder: pathlib.Path) -> dict[str, Any]:
  del folder
  return {'EVAL_ON_TEST': False}


def sequence_settings(folder: pathlib.Path, objective: str) -> dict[str, Any]:
  config = reference_models.load()['t5']['config'] | {
    # Bytes and 100 sentinels.
    'vocab_size': 384,
    'eos_token_id': tokenizers.ByteTokenizer.eos_id,
  }
  (folder / 'config.json').write_text(json.dumps(config))
  texts = [f'Text {i} of {i * i} about models.' for i in range(90)]
  lines = [{'input': text, 'target': text[:8], 'text': text} for text in texts]
  (folder / 'x.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  return {
    'MODEL_DIR': folder,
    'TRAIN_FILES': folder / 'x.jsonl',
    'OBJECTIVE': objective,
    'SOURCE_LEN': 32,
    'TARGET_LEN': 16,
    'EVAL_ON_TEST': False,
  }


EXPERIMENTS = {
  'bert': Experiment(
    exp='pax.tasks.lm.params.bert.BertSpmdL4H128',
    settings=bert_settings,
    rows_constant='PERCORE_BATCH_SIZE',
    mesh_constant='MESH_SHAPE',
  ),
  'images': Experiment(
    exp=f'{vision_experiments.__name__}.TinyResNet',
    settings=image_settings,
    rows_constant='TRAIN_BATCH_SIZE',
    mesh_constant='MESH_SHAPE',
  ),
  'digits': Experiment(
    exp='pax.tasks.vision.params.mnist.MnistExperiment', settings=digit_settings
  ),
  **{
    objective: Experiment(
      exp='pax.tasks.lm.params.huggingface.T5',
      settings=functools.partial(sequence_settings, objective=objective),
    )
    for objective in ('pairs', 'span_corruption')
  },
}


@pytest.mark.parametrize('name', EXPERIMENTS)
def test_other_experiments_repeat_no_batch(tmp_path, report, name):
  (tmp_path / 'data').mkdir()
  job, reference = (
    EXPERIMENTS[name].make_job(tmp_path / directory, tmp_path / 'data')
    for directory in ('job', 'reference')
  )
  report(kills=2, losses=interrupt_three_times(job, reference))


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


@pytest.mark.parametrize('workers', [1, 2])
def test_a_killed_pax_prepare_continues_with_the_next_part(
  tmp_path, report, workers
):
  texts = [f'{i} {i * i} ' * 400 for i in range(5000)]
  data_sets.write_jsonl(tmp_path / 'x.jsonl', texts)
  words = ['pax.main', 'prepare', str(tmp_path / 'x.jsonl')]

  def start(output: str) -> programs.Program:
    flags = [str(tmp_path / output), f'--workers={workers}']
    return programs.Program(
      [*words, *flags], programs.environment(), binary.PRELOADED
    )

  killed, parts = start('tokens'), tmp_path / 'tokens.parts'
  polling.wait_until(lambda: len(list(parts.glob('*.npz'))) > 2)
  pids = programs.workers_of(killed.pid)
  assert len(pids) == (workers if workers > 1 else 0)
  killed.send_signal(signal.SIGKILL)
  assert killed.wait().returncode == harness.KILLED
  polling.wait_until(lambda: not any(map(programs.is_running, pids)))
  assert not (tmp_path / 'tokens.idx').exists()
  for output in ('tokens', 'reference'):
    completed = start(output).wait()
    assert completed.returncode == 0, completed.stderr
    assert f'{len(texts)} documents' in completed.stdout
    is_killed = output == 'tokens'
    assert ('continues with the parts' in completed.stderr) == is_killed
  for suffix in ('bin', 'idx'):
    tokens, reference = (
      (tmp_path / f'{name}.{suffix}').read_bytes()
      for name in ('tokens', 'reference')
    )
    assert tokens == reference
  report(kills=1)


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
