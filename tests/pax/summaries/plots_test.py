# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Curves are read as they count, and drawn."""

from __future__ import annotations

import json
import math
import os

import pytest

from pax.summaries import plots, tags, writer


@pytest.fixture
def job_dir(tmp_path):
  jsonl = writer.JsonlWriter(str(tmp_path / writer.METRICS_FILE))
  for step in range(5):
    jsonl.write(step, {'loss': 5.0 - step, 'lr': 0.1})
  jsonl.write(2, {'loss': 9.0, 'Metrics/bits_per_byte': 2.0}, 'eval_test_x')
  jsonl.write(4, {'loss': 8.0}, 'eval_test_x')
  # The run goes on from step 2.
  jsonl.write(3, {'loss': 1.5})
  jsonl.write(4, {'loss': math.nan})
  jsonl.close()
  with open(tmp_path / writer.METRICS_FILE, 'a', encoding='utf-8') as f:
    f.write('{"step": 5, "spl')
  return tmp_path


def test_what_was_done_again_replaces_what_was_done(job_dir):
  curves = plots.read_metrics(str(job_dir))
  assert curves['eval_test_x'] == {
    'loss': {2: 9.0},
    'Metrics/bits_per_byte': {2: 2.0},
  }
  loss = curves['train'][tags.LOSS]
  assert list(loss) == [0, 1, 2, 3, 4]
  assert [loss[s] for s in range(4)] == [5.0, 4.0, 3.0, 1.5]
  assert math.isnan(loss[4])


def test_an_evaluation_of_an_older_checkpoint_keeps_those_of_later_ones(
  job_dir,
):
  jsonl = writer.JsonlWriter(str(job_dir / writer.METRICS_FILE))
  for step, loss in ((4, 7.0), (0, 9.5), (2, 9.1)):
    jsonl.write(step, {'loss': loss}, 'eval_test_x')
  jsonl.close()
  curves = plots.read_metrics(str(job_dir))
  loss = curves['eval_test_x']['loss']
  assert list(loss.items()) == [(0, 9.5), (2, 9.1), (4, 7.0)]


def test_files_of_several_jobs_are_read_in_the_order_of_time(
  tmp_path, monkeypatch
):
  records = {
    # Training goes back to step 1 after the first evaluation of step 2.
    'a_eval': [(2, 'eval_test_x', 3), (2, 'eval_test_x', 6)],
    'b_train': [
      (1, 'train', 1),
      (2, 'train', 2),
      (1, 'train', 4),
      (2, 'train', 5),
    ],
  }
  for name, lines in records.items():
    text = ''.join(
      json.dumps({'step': s, 'split': split, 'time': t, 'loss': t}) + '\n'
      for s, split, t in lines
    )
    (tmp_path / name).write_text(text)
  files = sorted(tmp_path.iterdir())
  monkeypatch.setattr(plots, 'metrics_files', lambda directory: files)
  curves = plots.read_metrics(str(tmp_path))
  assert curves['eval_test_x']['loss'] == {2: 6}
  assert curves['train']['loss'] == {1: 4, 2: 5}


def test_the_loss_curve_is_a_png(job_dir):
  path = plots.loss_curve(str(job_dir))
  assert os.path.basename(path) == 'loss_curve.png'
  with open(path, 'rb') as f:
    assert f.read(8) == b'\x89PNG\r\n\x1a\n'
  assert not [p for p in os.listdir(job_dir) if p.endswith('.partial')]


def test_nothing_recorded_draws_nothing(tmp_path):
  assert plots.loss_curve(str(tmp_path)) is None
  (tmp_path / writer.METRICS_FILE).touch()
  assert plots.loss_curve(str(tmp_path)) is None
