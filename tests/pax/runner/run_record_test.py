# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""`run.json` has one record for each start of a job."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess

import jax
import pytest

from pax.runner import run_record

_ARGV = ['pax', '--exp=x.Y', '--set', 'A=[1, 2]']


class Experiment:
  """An experiment without methods."""


def _records(folder, file=run_record.FILE):
  return json.loads((folder / file).read_text())


@pytest.fixture
def git(tmp_path):
  """Runs git in a repository of its own."""
  environment = os.environ | {
    f'GIT_{who}_{what}': 'x'
    for who in ('AUTHOR', 'COMMITTER')
    for what in ('NAME', 'EMAIL')
  }

  def run(*words):
    return subprocess.run(
      ['git', *words],
      cwd=tmp_path,
      env=environment,
      check=True,
      capture_output=True,
      text=True,
    ).stdout.strip()

  try:
    run('init', '-q')
  except FileNotFoundError:
    pytest.skip('there is no git')
  return run


def test_each_start_adds_a_record(tmp_path):
  for _ in range(2):
    run_record.append(str(tmp_path), Experiment, 'train', _ARGV)
  first, second = _records(tmp_path)
  assert first['experiment'] == f'{__name__}.Experiment'
  assert first['argv'] == _ARGV
  assert first['command'] == "pax --exp=x.Y --set 'A=[1, 2]'"
  assert first['versions']['python'] == platform.python_version()
  assert first['versions']['jax'] == jax.__version__
  assert set(first['versions']) >= {'pax', 'jaxlib', 'flax', 'fiddle'}
  assert first['backend'] == jax.default_backend()
  assert first['device_kind'] == jax.devices()[0].device_kind
  assert first['num_devices'] == jax.device_count()
  assert first['num_processes'] == 1
  times = [
    datetime.datetime.fromisoformat(r['start_time']) for r in (first, second)
  ]
  assert times[0] <= times[1] and times[0].tzinfo is not None


def test_other_modes_have_files_of_their_own(tmp_path):
  run_record.append(str(tmp_path), Experiment, 'eval', _ARGV)
  (record,) = _records(tmp_path, 'eval_run.json')
  assert record['mode'] == 'eval'
  assert not (tmp_path / run_record.FILE).exists()


def test_the_commit_of_a_checkout(git, tmp_path):
  file = tmp_path / 'module.py'
  file.write_text('1')
  assert run_record._commit(file) is None
  git('add', 'module.py')
  git('commit', '-qm', 'first')
  head = git('rev-parse', 'HEAD')
  assert run_record._commit(file) == {'hash': head, 'dirty': False}
  (tmp_path / 'notes.txt').write_text('untracked')
  assert not run_record._commit(file)['dirty']
  file.write_text('2')
  assert run_record._commit(file) == {'hash': head, 'dirty': True}
  # Such as an installed package in a virtual environment of the checkout.
  assert run_record._commit(tmp_path / 'notes.txt') is None


def test_without_git_there_is_no_commit(tmp_path, monkeypatch):
  monkeypatch.setenv('PATH', '')
  assert run_record._commit(tmp_path / 'module.py') is None
