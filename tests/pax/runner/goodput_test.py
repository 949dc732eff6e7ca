# SPDX-License-Identifier: Apache-2.0
"""A job that dies and is started again: all its time is accounted for."""

# bazel: size=medium
from __future__ import annotations

import json
import os
import time

import pytest

from pax.programs import train
from pax.programs.stopping import preemption
from pax.runner import build_train, job_dir, job_setup
from pax.runner.options import RunOptions
from pax.summaries import goodput
from tests.integration import experiments
from tests.pax.summaries import event_files


class Dying(experiments.FailingRows):
  fails_at: int = 15


class Dies(experiments.TinySpmd):
  """Its data end with an error after the checkpoint of step 10."""

  INPUT = Dying


def _train(path, experiment):
  options = RunOptions(
    job_log_dir=str(path),
    eval_on_test=True,
    pax_only_aggregate_summaries=True,
  )
  planned = job_setup.resolve(options, experiment)
  with preemption.PreemptionHandler() as signals:
    with job_dir.open_job_dir(options.job_log_dir, 0) as directory:
      with build_train.build(options, planned, directory, signals) as run:
        train.train(run)
  return run


@pytest.fixture(scope='module')
def job(tmp_path_factory):
  """(directory, seconds it all took, what the second process told)."""
  path = tmp_path_factory.mktemp('job')
  began = time.time()
  with pytest.raises(OSError, match='is gone'):
    _train(path, Dies())
  time.sleep(0.5)
  run = _train(path, experiments.TinySpmd())
  return path, time.time() - began, run.goodput.summary_line()


def test_the_times_add_up(job):
  job_dir, took, line = job
  found = goodput.summarize(goodput.read(str(job_dir / goodput.GOODPUT_FILE)))
  assert found.attempts == 2
  assert sum(found.seconds.values()) == pytest.approx(found.wall_secs)
  # Before the first ledger the experiment was planned.
  assert took - 2 < found.wall_secs <= took
  assert found.seconds['restart'] >= 0.5
  assert 0 < found.seconds['lost'] < took / 2
  for purpose in (goodput.COMPILE, goodput.STEP, goodput.EVAL, goodput.START):
    assert found.seconds[purpose] > 0, purpose
  assert line.startswith('goodput ') and line.endswith('(2 starts)')


def test_the_second_process_went_on_from_the_checkpoint(job):
  job_dir, *_ = job
  records = goodput.read(str(job_dir / goodput.GOODPUT_FILE))
  resumed = [r['step'] for r in records if r.get('resumed')]
  assert resumed == [0, 10]
  assert records[-1]['step'] == 20
  # The first process has failed.
  assert {r['attempt'] for r in records if r.get('finished')} == {1}
  assert records[-1]['finished']


def test_tensorboard_has_words_about_the_model(job):
  job_dir, *_ = job
  folder = job_dir / 'summaries' / 'train'
  texts = {}
  for name in sorted(os.listdir(folder)):
    (folder / 'one').mkdir(exist_ok=True)
    os.rename(folder / name, folder / 'one' / name)
    for _, value in event_files.read(str(folder / 'one')):
      if value.HasField('tensor'):
        texts[value.tag] = value.tensor.string_val[0].decode()
    os.remove(folder / 'one' / name)
  assert texts['Total Num Params'] == '160'
  assert texts['Global batch size'] == '8'
  assert '| params/first/linear/w | 8x16 | 128 |' in texts['Model']


def test_only_aggregates_were_written(job):
  job_dir, *_ = job
  with open(job_dir / 'metrics.jsonl', encoding='utf-8') as f:
    tags = {tag for line in f for tag in json.loads(line)}
  assert {'loss', 'Metrics/rows', 'learning/lr_scalar'} & tags
  assert not any('mean_hidden' in tag for tag in tags)
