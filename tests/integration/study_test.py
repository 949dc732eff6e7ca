# SPDX-License-Identifier: Apache-2.0
"""A sweep of four trials through the real binary, in two goes."""

# bazel: size=large
from __future__ import annotations

import json
import os
import signal

import pytest

from tests.integration import binary
from tests.testing import polling


def _last_records(job_log_dir):
  lines = (job_log_dir / 'study.jsonl').read_text().splitlines()
  return {r['id']: r for r in map(json.loads, lines)}


def _run(job_log_dir, *words):
  ended = binary.run(
    'TinySweep', job_log_dir, '--study=local', '--parallel_trials=2', *words
  )
  assert ended.returncode == 0, ended.stderr
  return ended.stdout


def test_a_sweep_of_four_trials(tmp_path):
  _run(tmp_path, '--num_trials=1')
  assert len(_last_records(tmp_path)) == 1
  out = _run(tmp_path)
  records = _last_records(tmp_path)
  assert sorted(records) == [1, 2, 3, 4]
  assert {r['status'] for r in records.values()} == {'done'}
  assert len({tuple(r['settings'].values()) for r in records.values()}) == 4
  for number, record in records.items():
    evals = [
      r['loss']
      for r in binary.records(tmp_path / str(number))
      if r['split'] == 'eval_test_held_out' and r['step'] == 4
    ]
    assert record['reward'] == -evals[-1]
  best = max(records.values(), key=lambda r: r['reward'])
  settings = ' '.join(f'--set {k}={v}' for k, v in best['settings'].items())
  assert f'best: trial {best["id"]}  {settings}' in out
  assert (tmp_path / 'study.txt').read_text() in out
  assert (tmp_path / 'study.png').stat().st_size > 1000


@pytest.mark.nightly
def test_a_trial_of_two_runs(tmp_path):
  ended = binary.run('TinyParts', tmp_path, '--study=local', '--num_trials=1')
  assert ended.returncode == 0, ended.stderr
  record = _last_records(tmp_path)[1]
  losses = {}
  for part, hidden in (('narrow', 4), ('wide', 8)):
    job = tmp_path / '1' / part
    assert f'HIDDEN: {hidden}' in (job / 'experiment_cls_vars.txt').read_text()
    found = [r for r in binary.records(job) if r['split'].startswith('eval_te')]
    losses[f'eval_test_held_out/metrics/loss:{part}'] = found[-1]['loss']
  assert record['reward'] == -max(losses.values())
  assert losses.items() <= record['metrics'].items()


def test_a_study_that_is_killed_takes_its_trials_along(tmp_path):
  """They save what they have, and the same command goes on from there."""
  words = ['--study=local', '--num_trials=1', '--set=NUM_STEPS=1000']
  words += ['--set=SAVE_EVERY=100000']
  study = binary.start('TinySweep', tmp_path, *words, '--set=SECONDS=0.05')
  metrics, lock = (tmp_path / '1' / name for name in ('metrics.jsonl', '.lock'))
  polling.wait_until(
    lambda: metrics.exists() and len(binary.losses(tmp_path / '1'))
  )
  trial = json.loads(lock.read_text())['pid']
  study.send_signal(signal.SIGKILL)
  study.wait()
  polling.wait_until(lambda: not _is_alive(trial))
  (saved,) = binary.checkpoint_names(tmp_path / '1')[-1:]
  stopped_at = int(saved.removeprefix('checkpoint_'))
  assert 0 < stopped_at < 1000
  ended = binary.run(
    'TinySweep', tmp_path, *words[:2], f'--set=NUM_STEPS={stopped_at + 1}'
  )
  assert ended.returncode == 0, ended.stderr
  assert _last_records(tmp_path)[1]['status'] == 'done'
  assert sorted(binary.losses(tmp_path / '1')) == list(range(stopped_at + 1))


def _is_alive(pid):
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  return True
