# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""The real program ahead of time: what it tells, and a step that it saves."""

from __future__ import annotations

import json

import pytest

from tests.integration import binary

AHEAD = ('--mode=aot', '--topology=cpu:2', '--set=ICI_MESH_SHAPE=[1,2,1]')


@pytest.fixture(scope='module')
def ahead(tmp_path_factory):
  """What was told, and the folder of the job with the saved step."""
  folder = tmp_path_factory.mktemp('ahead')
  done = binary.run(
    'TinySpmd', folder, *AHEAD, f'--aot_save={folder}/step', devices=2
  )
  assert done.returncode == 0, done.stderr
  return done.stdout, folder


def train(folder, job, *words):
  return binary.run(
    'TinySpmd',
    job,
    f'--aot_load={folder}/step',
    '--set=ICI_MESH_SHAPE=[1,2,1]',
    *words,
    devices=2,
  )


def test_it_tells_what_the_step_takes(ahead):
  said, folder = ahead
  assert 'TinySpmd on cpu:2' in said and 'compiled step:' in said
  report = json.loads((folder / 'aot/TinySpmd-cpu:2.json').read_text())
  assert report['level'] == 10 and report['compile_s'] > 0
  assert report['mesh'] == {'replica': 1, 'data': 2, 'mdl': 1}


def test_a_job_trains_with_the_step(ahead, tmp_path):
  done = train(ahead[1], tmp_path)
  assert done.returncode == 0, done.stderr
  assert len(binary.losses(tmp_path)) >= 20


def test_another_job_is_told_why_not(ahead, tmp_path):
  done = train(ahead[1], tmp_path, '--set=HIDDEN=8')
  assert done.returncode == 1
  assert 'is of another configuration' in done.stderr
  assert 'Traceback' not in done.stderr
