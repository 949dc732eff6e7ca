# SPDX-License-Identifier: Apache-2.0
"""Runs whose loss and gradients become NaN."""

# bazel: size=large
from __future__ import annotations

import math

import pytest

from tests.integration import binary
from tests.testing import nightly

EXIT_DIVERGED = 3  # As documented.


@pytest.mark.parametrize(
  ('exp', 'devices'),
  [
    ('TinyDiverging', 1),
    *nightly.cases(('TinyDivergingPmap', 2)),
  ],
)
def test_a_run_that_diverges_ends_and_says_where(tmp_path, exp, devices):
  ended = binary.run(exp, tmp_path, devices=devices)
  assert ended.returncode == EXIT_DIVERGED, ended.stderr
  # Steps 7 to 11, of a run of 20; checkpoints every second step.
  assert '5 steps in a row, since step 7' in ended.stderr
  assert 'the last checkpoint before them, step 6, is kept' in ended.stderr
  assert 'The first NaN or inf of step 7: ' in ended.stderr
  assert 'inf in model/divider (forward pass): div' in ended.stderr
  assert 'tests/integration/experiments.py' in ended.stderr
  names = _steps(tmp_path)
  # The pinned one, and those of retention; none of the end.
  assert 6 in names and len(names) <= 4
  newest = max(names)
  assert 8 <= newest <= 13
  assert f'continues from step {newest}' in ended.stderr
  assert f'--init_from={tmp_path}@6' in ended.stderr
  last = binary.records(tmp_path)[-1]
  assert last['learning/consecutive_nonfinite_steps'] >= 5
  assert last['learning/consecutive_skipped_steps'] >= 5
  # Started again, it continues from the newest, and never deletes step 6.
  again = binary.run(exp, tmp_path, devices=devices)
  assert again.returncode == EXIT_DIVERGED, again.stderr
  assert 6 in _steps(tmp_path)


def _steps(job_log_dir):
  names = binary.checkpoint_names(job_log_dir)
  return {int(n.split('_')[1]) for n in names if n.startswith('checkpoint_')}


def test_a_run_recovers_from_one_bad_step(tmp_path):
  ended = binary.run(
    'TinyDiverging',
    tmp_path,
    '--set=NUM_BAD_STEPS=1',
    '--set=task.train.detect_nan=first',
  )
  assert ended.returncode == 0, ended.stderr
  assert 'skipped 1' in ended.stderr
  assert 'step 7: ' in ended.stderr
  losses = binary.losses(tmp_path)
  assert [
    s for s, loss in losses.items() if not math.isfinite(float(loss))
  ] == [7]
  consecutive = {
    r['step']: r['learning/consecutive_skipped_steps']
    for r in binary.records(tmp_path)
    if r['split'] == 'train'
  }
  assert consecutive == {s: float(s == 7) for s in range(20)}
  assert binary.records(tmp_path)[-1]['learning/skipped_steps_scalar'] == 1.0


def test_without_skipping_no_non_finite_state_is_saved(tmp_path):
  ended = binary.run('TinyDiverging', tmp_path, '--set=SKIPS=False')
  assert ended.returncode == EXIT_DIVERGED, ended.stderr
  assert 'the last checkpoint before them, step 6, is kept' in ended.stderr
  assert 'variable params/' in ended.stderr
  assert max(_steps(tmp_path)) == 6


def test_zero_never_ends_a_run(tmp_path):
  ended = binary.run('TinyDiverging', tmp_path, '--set=MAX_BAD_STEPS=0')
  assert ended.returncode == 0, ended.stderr
  assert 'skipped 13' in ended.stderr


def test_all_processes_decide_alike(tmp_path):
  processes = binary.start_processes(
    'TinyDiverging',
    tmp_path,
    '--set=ICI_MESH_SHAPE=[1,2,1]',
    '--set=ROWS=16',
    count=2,
    devices=1,
  )
  ended = binary.wait(processes)
  assert [e.returncode for e in ended] == [EXIT_DIVERGED] * 2, ended
  assert 'divider (forward pass): div' in ended[0].stderr
