# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Checkpoints in a bucket: markers, parts of killed jobs, quarantine.

The bucket is in memory; `tests/integration/buckets_test.py` has a server.
"""

from __future__ import annotations

import uuid

import pytest

from pax import checkpoints, storage
from pax.checkpoints import paths
from tests.testing import saved_states, trees

FLAX = checkpoints.CheckpointType.FLAX
GDA = checkpoints.CheckpointType.GDA


@pytest.fixture
def bucket():
  return storage.to_path(f'memory://{uuid.uuid4().hex}/run')


def create(bucket, kind=GDA, **options):
  options = {'save_interval_steps': 1, 'asynchronous': False} | options
  return checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(**options), str(bucket), kind
  )


def steps(bucket):
  return list(paths.steps(bucket / paths.CHECKPOINTS))


def names(bucket):
  """Returns the names in the folder of the checkpoints that have objects."""
  files = (bucket / paths.CHECKPOINTS).files()
  return sorted({file.partition('/')[0] for file in files})


def test_a_checkpoint_of_one_object(bucket):
  checkpointer, state = create(bucket, FLAX), saved_states.state(1)
  checkpointer.save(3, state, {'examples': 3})
  restored = create(bucket, FLAX).restore(trees.abstract(state))
  assert restored.step == 3 and restored.input_state == {'examples': 3}
  saved_states.check_equal(restored.state, state)
  assert (bucket / paths.CHECKPOINTS).files() == ['checkpoint_3']


@pytest.mark.parametrize('use_ocdbt', [False, True])
def test_a_tree_of_objects_has_a_marker_written_last(
  bucket, monkeypatch, use_ocdbt
):
  writes = []
  for name in ('upload', 'write_bytes'):
    method = getattr(storage.BucketPath, name)

    def record(path, *args, method=method, **kwargs):
      writes.append(path.name)
      return method(path, *args, **kwargs)

    monkeypatch.setattr(storage.BucketPath, name, record)
  create(bucket, use_ocdbt=use_ocdbt).save(2, saved_states.state(1))
  assert writes[-1] == storage.MARKER and len(writes) > 5
  assert writes.count(storage.MARKER) == 1
  assert steps(bucket) == [2]
  # Orbax's check of a checkpoint in a bucket reads this marker.
  (path,) = paths.steps(bucket / paths.CHECKPOINTS).values()
  (path / storage.MARKER).unlink()
  assert steps(bucket) == []


def test_parts_are_ignored_and_removed_at_the_first_save(bucket):
  part = bucket / paths.CHECKPOINTS / 'checkpoint_00000007'
  (part / 'state/d/1').write_text('x')
  checkpointer = create(bucket)
  assert checkpointer.latest_step() is None
  # Another job reads while this one may still be writing.
  assert part.exists()
  checkpointer.save(8, saved_states.state(1))
  assert names(bucket) == ['checkpoint_00000008']
  assert steps(bucket) == [8]


def test_a_failed_upload_leaves_the_checkpoint_before_it(bucket, monkeypatch):
  checkpointer, state = create(bucket), saved_states.state(1)
  checkpointer.save(1, state)
  upload = storage.BucketPath.upload

  def fail(path, file):
    if path.name == 'manifest.ocdbt':
      raise OSError('connection reset')
    upload(path, file)

  with monkeypatch.context() as patch:
    patch.setattr(storage.BucketPath, 'upload', fail)
    with pytest.raises(
      checkpoints.CheckpointError, match='connection reset; the checkpoints'
    ):
      checkpointer.save(2, state)
  assert steps(bucket) == [1]
  # Nothing of it remains, and the same step can be saved.
  assert names(bucket) == ['checkpoint_00000001']
  checkpointer.save(2, state)
  assert steps(bucket) == [1, 2]


def test_expired_checkpoints_are_deleted(bucket):
  checkpointer = create(bucket, max_to_keep=2)
  for step in range(5):
    checkpointer.save(step, saved_states.state(1))
  assert steps(bucket) == [3, 4]
  assert names(bucket) == ['checkpoint_00000003', 'checkpoint_00000004']


def test_expired_checkpoints_are_moved(bucket):
  checkpointer = create(bucket, max_to_keep=1, todelete_subdir='archive')
  for step in range(2):
    checkpointer.save(step, saved_states.state(1))
  assert steps(bucket) == [1]
  assert list(paths.steps(bucket / paths.CHECKPOINTS / 'archive')) == [0]


def test_a_corrupt_checkpoint_is_set_aside(bucket):
  checkpointer = create(bucket, FLAX, skips_corrupt=True)
  states = {step: saved_states.state(1, scale=step) for step in (1, 2)}
  for step, state in states.items():
    checkpointer.save(step, state)
  newest = bucket / paths.CHECKPOINTS / 'checkpoint_2'
  data = bytearray(newest.read_bytes())
  data[len(data) // 2] ^= 1
  newest.write_bytes(bytes(data))
  with pytest.raises(checkpoints.CorruptCheckpointError) as error:
    create(bucket, FLAX).restore(trees.abstract(states[1]))
  assert f'{newest} is corrupt' in str(error.value)
  restored = checkpointer.restore(trees.abstract(states[1]))
  assert restored.step == 1
  saved_states.check_equal(restored.state, states[1])
  assert names(bucket) == ['checkpoint_1', 'corrupt_checkpoint_2']


def test_a_failure_of_the_service_is_no_corruption(bucket, monkeypatch):
  checkpointer = create(bucket, FLAX, skips_corrupt=True)
  state = saved_states.state(1)
  for step in (1, 2):
    checkpointer.save(step, state)
  read = storage.BucketPath.read_bytes
  failures = []

  def fail_once(path):
    if path.name == 'checkpoint_2' and not failures:
      failures.append(path)
      raise OSError('503')
    return read(path)

  monkeypatch.setattr(storage.BucketPath, 'read_bytes', fail_once)
  assert checkpointer.restore(trees.abstract(state)).step == 2
  assert failures and names(bucket) == ['checkpoint_1', 'checkpoint_2']


def test_commands_for_buckets():
  path = storage.BucketPath('s3:', 'b/checkpoints/checkpoint_00000001')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(storage.BucketPath, 'exists', lambda path: False)
    command = paths.move_aside_command(path)
  assert command == (
    'aws s3 mv --recursive s3://b/checkpoints/checkpoint_00000001'
    ' s3://b/checkpoints/corrupt_checkpoint_00000001'
  )


def test_pins_are_in_the_bucket(bucket):
  checkpointer = create(bucket, FLAX, max_to_keep=1)
  checkpointer.pin(0, permanently=True)
  for step in range(3):
    checkpointer.save(step, saved_states.state(1))
  assert steps(bucket) == [0, 2]
  assert 'pinned_checkpoints.json' in bucket.files()
