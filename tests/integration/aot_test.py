# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""`--mode=aot` as a process: its report, and a saved step that trains."""

from __future__ import annotations

import json

import pytest

from tests.integration import binary

AHEAD = ('--mode=aot', '--topology=cpu:2', '--set=ICI_MESH_SHAPE=[1,2,1]')


@pytest.fixture(scope='module')
def ahead(tmp_path_factory):
  """The output, and the job directory with the saved step."""
  folder = tmp_path_factory.mktemp('ahead')
  done = binary.run(
    'TinySpmd', folder, *AHEAD, f'--aot_save={folder}/step', devices=2
  )
  assert done.returncode == 0, done.stderr
  return done.stdout, folder


def train(folder, job, *flags):
  return binary.run(
    'TinySpmd',
    job,
    f'--aot_load={folder}/step',
    '--set=ICI_MESH_SHAPE=[1,2,1]',
    *flags,
    devices=2,
  )


def test_it_tells_what_the_step_takes(ahead):
  stdout, folder = ahead
  assert 'TinySpmd on cpu:2' in stdout and 'compiled step:' in stdout
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
