# SPDX-License-Identifier: Apache-2.0
"""`pax tune` by Optuna through the real binary, killed on the way."""

# bazel: size=large
# bazel: tags=nightly
# bazel: deps=//pax/tuning:optuna_study
from __future__ import annotations

import json
import signal

import pytest

from pax.tuning import optuna_study
from tests.integration import binary
from tests.testing import polling

pytest.importorskip('optuna')
_WORDS = ('--study=local', '--sampler=tpe', '--pruner=median', '--num_trials=4')


def _ended_trials(job_log_dir):
  file = job_log_dir / 'study.jsonl'
  lines = file.read_text().splitlines() if file.exists() else []
  records = {r['id']: r for r in map(json.loads, lines)}
  return {id: r for id, r in records.items() if r['status'] != 'running'}


def test_a_study_of_optuna_survives_sigkill(tmp_path):
  words = (*_WORDS, '--parallel_trials=2')
  study = binary.start('TinyTuned', tmp_path, *words)
  polling.wait_until(lambda: len(_ended_trials(tmp_path)) >= 1)
  study.send_signal(signal.SIGKILL)
  study.wait()
  before = _ended_trials(tmp_path)
  ended = binary.run('TinyTuned', tmp_path, *words)
  assert ended.returncode == 0, ended.stderr
  after = _ended_trials(tmp_path)
  assert sorted(after) == [1, 2, 3, 4]
  assert before.items() <= after.items()
  assert len({tuple(r['settings'].values()) for r in after.values()}) == 4
  assert 'best: trial' in ended.stdout
  found = optuna_study.OptunaStudy(str(tmp_path)).study.get_trials()
  recorded = [t for t in found if 'pax_trial' in t.user_attrs]
  assert [t.user_attrs['pax_trial'] for t in recorded] == [1, 2, 3, 4]
  # SIGKILL may cut a proposal short; what it left is no trial.
  cut = [t.state.name for t in found if t not in recorded]
  assert cut in ([], ['FAIL'])
  for trial, record in zip(recorded, after.values(), strict=True):
    assert trial.params['NOISE'] == float(record['settings']['NOISE'])
    assert trial.params['HIDDEN'] == int(record['settings']['HIDDEN'])
    # Of the two evaluations, as early stopping sees them.
    assert trial.intermediate_values
