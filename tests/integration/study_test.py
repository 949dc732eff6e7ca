# SPDX-License-Identifier: Apache-2.0
"""A sweep of eight trials through the real binary, in two goes."""

# bazel: size=large
from __future__ import annotations

import json

from tests.integration import binary


def _last_records(job_log_dir):
  lines = (job_log_dir / 'study.jsonl').read_text().splitlines()
  return {r['id']: r for r in map(json.loads, lines)}


def _run(job_log_dir, *words):
  ended = binary.run(
    'TinySweep', job_log_dir, '--study=local', '--parallel_trials=2', *words
  )
  assert ended.returncode == 0, ended.stderr
  return ended.stdout


def test_a_sweep_of_eight_trials(tmp_path):
  _run(tmp_path, '--num_trials=2')
  assert len(_last_records(tmp_path)) == 2
  out = _run(tmp_path)
  records = _last_records(tmp_path)
  assert sorted(records) == list(range(1, 9))
  assert {r['status'] for r in records.values()} == {'done'}
  assert len({tuple(r['settings'].values()) for r in records.values()}) == 8
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
