# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
# bazel: deps=//tests/pax/checkpoints:save_by_two
"""Two real processes save, fail and restore together."""

from __future__ import annotations

import json

import pytest

from tests.integration import binary
from tests.testing import programs

_MODULE = 'tests.pax.checkpoints.save_by_two'


@pytest.fixture(scope='module')
def messages(tmp_path_factory):
  """The messages of both processes."""
  directory = tmp_path_factory.mktemp('job')
  address = f'localhost:{binary.free_port()}'
  processes = [
    programs.Program(
      [_MODULE, address, str(index), str(directory)],
      programs.environment(),
      (_MODULE,),
    )
    for index in range(2)
  ]
  completed = [process.wait() for process in processes]
  assert [c.returncode for c in completed] == [0, 0], completed
  return [json.loads(c.stdout.splitlines()[-1]) for c in completed]


def test_a_failure_of_one_fails_both_at_the_next_step(messages):
  first, second = messages
  assert first['failed'] == 'process 1 of 2: the disk of process 1 burns'
  assert second['failed'] == 'the disk of process 1 burns'


def test_both_restore_the_last_complete_checkpoint(messages):
  assert [m['restored'] for m in messages] == [
    [0, {'rows': 0}],
    [0, {'rows': 1}],
  ]
  for message in messages:
    assert 'checkpoint_00000002' not in message['checkpoints']


def test_one_replica_reads_for_both(messages):
  values = list(range(8))
  assert [m['replica'] for m in messages] == [[1, values], [0, values]]


def test_the_deadline_names_the_process_that_is_missing(messages):
  first, second = messages
  assert first['missing'].startswith(
    'process 1 of 2 did not reach the barrier'
    " 'temporary files are removed' within 2 s"
  )
  assert 'after the others had stopped waiting' in second['late']
