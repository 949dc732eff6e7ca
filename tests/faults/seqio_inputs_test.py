# SPDX-License-Identifier: Apache-2.0
# bazel: deps=@pypi_seqio//seqio
# bazel: size=large
# bazel: tags=nightly
"""Jobs on a SeqIO task that are killed, stopped and continued."""

from __future__ import annotations

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
  job, reference = (
    harness.Job(tmp_path / directory, exp=exp, flags=flags)
    for directory in ('job', 'reference')
  )
  losses = inputs_test.interrupt_three_times(job, reference)
  report(kills=2, losses=losses)
