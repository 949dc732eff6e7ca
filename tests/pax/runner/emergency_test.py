# SPDX-License-Identifier: Apache-2.0
"""A job whose directory is gone saves its state to another one."""

# bazel: size=medium
from __future__ import annotations

import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from pax import checkpoints
from pax.runner import emergency, job_dir
from pax.runner.options import RunOptions, UsageError
from tests.testing import trees

OPTIONS = checkpoints.CheckpointOptions(save_interval_steps=2)


def _checkpointer(directory, emergency_dir=None, before_write=lambda: None):
  kind = checkpoints.CheckpointType.GDA
  inner = checkpoints.create_checkpointer(
    OPTIONS,
    str(directory.path),
    kind,
    job=checkpoints.JobFunctions(before_write=before_write),
  )
  target = emergency_dir and emergency.EmergencyDir(
    emergency_dir, kind, OPTIONS
  )
  return emergency.GuardedCheckpointer(inner, directory, OPTIONS, target)


def _state(value):
  return {'w': jnp.full([4], value)}


def _saved(directory):
  step = max(checkpoints.reading.checkpoint_steps(directory))
  restored = checkpoints.create_checkpointer(OPTIONS, str(directory)).restore(
    trees.abstract(_state(0.0))
  )
  assert restored.step == step
  return step, float(restored.state['w'][0]), restored.input_state


def test_saves_the_current_state_when_the_directory_is_gone(tmp_path):
  path, other = tmp_path / 'job', tmp_path / 'emergency'
  other.mkdir()
  with pytest.raises(job_dir.JobDirGoneError, match='deleted. The state of'):
    with job_dir.open_job_dir(str(path), 0) as directory:
      checkpointer = _checkpointer(directory, other)
      assert checkpointer.save(0, _state(1.0), {'count': 0})
      checkpointer.wait()
      shutil.rmtree(path)
      # The next save is due at step 2.
      checkpointer.save(1, _state(2.0), {'count': 1})
      try:
        checkpointer.save(2, _state(3.0), {'count': 2})
      finally:
        checkpointer.abandon(5)
  assert not path.exists()
  assert _saved(other) == (2, 3.0, {'count': 2})


def test_without_another_directory_the_message_has_the_loss(tmp_path):
  path = tmp_path / 'job'
  with pytest.raises(job_dir.JobDirGoneError, match='steps after its last'):
    with job_dir.open_job_dir(str(path), 0) as directory:
      shutil.rmtree(path)
      _checkpointer(directory).save(0, _state(1.0))


def test_a_checkpoint_that_cannot_be_written_is_saved_elsewhere(tmp_path):
  other = tmp_path / 'emergency'
  other.mkdir()

  def fail():
    raise checkpoints.CheckpointError('cannot write: the disk is full')

  with job_dir.open_job_dir(str(tmp_path / 'job'), 0) as directory:
    checkpointer = _checkpointer(directory, other, fail)
    assert checkpointer.save(4, _state(7.0))
    with pytest.raises(
      checkpoints.CheckpointError, match='disk is full. The state of step 4 is'
    ):
      checkpointer.wait()
  assert _saved(other)[:2] == (4, 7.0)


@pytest.mark.parametrize('method', ['save', 'wait'])
def test_a_directory_that_hangs_is_not_looked_at(tmp_path, monkeypatch, method):
  other = tmp_path / 'emergency'
  other.mkdir()
  with job_dir.open_job_dir(str(tmp_path / 'job'), 0) as directory:
    checkpointer = _checkpointer(directory, other)

    def hang(*args, **kwargs):
      raise checkpoints.CheckpointTimeoutError('its file system hangs')

    monkeypatch.setattr(checkpointer._checkpointer, method, hang)
    monkeypatch.setattr(directory, 'absence', None)
    # At this step the directory is not checked first.
    checkpointer._snapshot = emergency.Snapshot(1, _state(7.0), None)
    with pytest.raises(
      checkpoints.CheckpointTimeoutError, match='hangs. The state of step 1 is'
    ):
      checkpointer.wait() if method == 'wait' else checkpointer.save(
        1, _state(7.0)
      )
  assert _saved(other)[:2] == (1, 7.0)


def test_a_state_that_a_later_step_replaced_is_not_saved(tmp_path):
  other = tmp_path / 'emergency'
  other.mkdir()

  def fail():
    raise checkpoints.CheckpointError('full')

  state = _state(7.0)
  with job_dir.open_job_dir(str(tmp_path / 'job'), 0) as directory:
    checkpointer = _checkpointer(directory, other, fail)
    checkpointer.save(4, state)
    state['w'].delete()
    with pytest.raises(checkpoints.CheckpointError, match='No state was saved'):
      checkpointer.wait()


def test_a_failure_of_the_other_directory_is_in_the_message(tmp_path):
  path, other = tmp_path / 'job', tmp_path / 'emergency'
  other.write_text('a file')
  with pytest.raises(job_dir.JobDirGoneError, match='failed too: '):
    with job_dir.open_job_dir(str(path), 0) as directory:
      shutil.rmtree(path)
      _checkpointer(directory, other).save(0, _state(np.float32(1.0)))


def test_the_emergency_directory_is_checked(tmp_path):
  def check(name):
    return emergency.check_emergency_dir(
      str(tmp_path / name), str(tmp_path / 'a')
    )

  assert check('b/c').is_dir() and not any((tmp_path / 'b/c').iterdir())
  for name in ('a', 'a/b'):
    with pytest.raises(UsageError, match='is inside of --job_log_dir'):
      check(name)
  (tmp_path / 'file').write_text('')
  with pytest.raises(UsageError, match='cannot write to --emergency_dir'):
    check('file')
  (tmp_path / 'b/c/checkpoints/checkpoint_00000007').mkdir(parents=True)
  with pytest.raises(UsageError, match='has a checkpoint of step 7'):
    check('b/c')
  with pytest.raises(UsageError, match='got a URL; use a mounted directory'):
    emergency.check_emergency_dir('gs://bucket/b', str(tmp_path / 'a'))


@pytest.mark.parametrize('flags', [{'mode': 'eval'}, {'study': 'local'}])
def test_it_is_for_training(flags):
  with pytest.raises(UsageError, match='is for --mode=train'):
    RunOptions(emergency_dir='/tmp/x', **flags)
