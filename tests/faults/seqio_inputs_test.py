# SPDX-License-Identifier: Apache-2.0
# bazel: deps=@pypi_seqio//seqio
# bazel: size=large
# bazel: tags=nightly
"""Jobs on a SeqIO task that are killed, stopped and continued."""

from __future__ import annotations

import signal

import pytest

from tests.faults import harness, inputs_test
from tests.integration import seqio_experiments

pytest.importorskip('seqio')

SETTINGS = {
  # Of the schedule; each life sets its own last step.
  'NUM_TRAIN_STEPS': 10**6,
  # Some states of the iterator are older than the checkpoint that has them.
  'task.train.save_interval_steps': 50,
  'task.train.summary_interval_steps': 1,
}


@pytest.fixture
def data(tmp_path, monkeypatch):
  folder = tmp_path / 'data'
  folder.mkdir()
  seqio_experiments.write_data(folder)
  monkeypatch.setenv(seqio_experiments.DATA_VARIABLE, str(folder))


def test_killed_and_stopped_jobs_repeat_no_batch(data, tmp_path, report):
  flags = [f'--set={k}={v}' for k, v in SETTINGS.items()]
  exp = f'{seqio_experiments.__name__}.TinySeqIO'
  job = harness.Job(tmp_path / 'job', exp=exp, flags=flags)
  assert inputs_test.interrupt(job, signal.SIGKILL) == [harness.KILLED]
  assert inputs_test.interrupt(job, signal.SIGTERM) == [harness.PREEMPTED]
  assert inputs_test.interrupt(job, signal.SIGKILL) == [harness.KILLED]
  end = inputs_test.last_step(job.newest_step() + 5)
  job.finish(end)
  reference = harness.Job(tmp_path / 'reference', exp=exp, flags=flags)
  reference.finish(end)
  report(kills=2, losses=inputs_test.check_bits(job, reference))
