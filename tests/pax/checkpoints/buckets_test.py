# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Checkpoints in a bucket: markers, parts of killed jobs, quarantine.

The bucket is in memory; `tests/integration/buckets_test.py` has a server.
"""

from __future__ import annotations

import collections
import errno
import itertools
import tempfile
import uuid

import jax.numpy as jnp
import pytest

from pax import checkpoints, train_states
from pax.checkpoints import checkpoint_reader, paths, reading, state_restore
from pax.files import storage
from tests.testing import bucket_damage, nightly, saved_states, trees
from tests.testing.bucket_damage import checkpoint_names, create_checkpointer

# A layout and a damage of each kind.
_DAMAGED_BY_DAY = (
  ('one_file', 'delete'),
  ('leaves', 'flip'),
  ('ocdbt', 'truncate'),
)
FLAX = checkpoints.CheckpointType.FLAX
GDA = checkpoints.CheckpointType.GDA


@pytest.fixture
def bucket():
  return storage.to_path(f'memory://{uuid.uuid4().hex}/run')


def steps(bucket):
  return list(paths.steps(bucket / paths.CHECKPOINTS))


def test_a_checkpoint_of_one_object(bucket):
  checkpointer, state = create_checkpointer(bucket, FLAX), saved_states.state(1)
  checkpointer.save(3, state, {'examples': 3})
  restored = create_checkpointer(bucket, FLAX).restore(trees.abstract(state))
  assert restored.step == 3 and restored.input_state == {'examples': 3}
  saved_states.check_equal(restored.state, state)
  assert (bucket / paths.CHECKPOINTS).files() == ['checkpoint_3']


def test_a_train_state_is_restored_by_its_url(bucket):
  state = train_states.TrainState(
    step=jnp.uint32(3), mdl_vars={'params': {'w': jnp.ones(4)}}, opt_states=[]
  )
  create_checkpointer(bucket, FLAX).save(3, state)
  restored = state_restore.restore_checkpoint(
    trees.abstract(state), str(bucket)
  )
  saved_states.check_equal(restored, state)


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
  create_checkpointer(bucket, use_ocdbt=use_ocdbt).save(
    2, saved_states.state(1)
  )
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
  checkpointer = create_checkpointer(bucket)
  assert checkpointer.latest_step() is None
  # Another job reads while this one may still be writing.
  assert part.exists()
  checkpointer.save(8, saved_states.state(1))
  assert checkpoint_names(bucket) == ['checkpoint_00000008']
  assert steps(bucket) == [8]


def test_a_failed_upload_leaves_the_checkpoint_before_it(bucket, monkeypatch):
  checkpointer, state = create_checkpointer(bucket), saved_states.state(1)
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
  assert checkpoint_names(bucket) == ['checkpoint_00000001']
  checkpointer.save(2, state)
  assert steps(bucket) == [1, 2]


def test_expired_checkpoints_are_deleted(bucket):
  checkpointer = create_checkpointer(bucket, max_to_keep=2)
  for step in range(5):
    checkpointer.save(step, saved_states.state(1))
  assert steps(bucket) == [3, 4]
  assert checkpoint_names(bucket) == [
    'checkpoint_00000003',
    'checkpoint_00000004',
  ]


def test_expired_checkpoints_are_moved(bucket):
  checkpointer = create_checkpointer(
    bucket, max_to_keep=1, todelete_subdir='archive'
  )
  for step in range(2):
    checkpointer.save(step, saved_states.state(1))
  assert steps(bucket) == [1]
  assert list(paths.steps(bucket / paths.CHECKPOINTS / 'archive')) == [0]


def test_a_corrupt_checkpoint_is_set_aside(bucket):
  checkpointer = create_checkpointer(bucket, FLAX, skips_corrupt=True)
  states = {step: saved_states.state(1, scale=step) for step in (1, 2)}
  for step, state in states.items():
    checkpointer.save(step, state)
  newest = bucket / paths.CHECKPOINTS / 'checkpoint_2'
  data = bytearray(newest.read_bytes())
  data[len(data) // 2] ^= 1
  newest.write_bytes(bytes(data))
  with pytest.raises(checkpoints.CorruptCheckpointError) as error:
    create_checkpointer(bucket, FLAX).restore(trees.abstract(states[1]))
  assert f'{newest} is corrupt' in str(error.value)
  restored = checkpointer.restore(trees.abstract(states[1]))
  assert restored.step == 1
  saved_states.check_equal(restored.state, states[1])
  assert checkpoint_names(bucket) == ['checkpoint_1', 'corrupt_checkpoint_2']


def test_what_looks_corrupt_is_read_once_more(bucket, monkeypatch):
  checkpointer = create_checkpointer(bucket, FLAX, skips_corrupt=True)
  state = saved_states.state(1)
  for step in (1, 2):
    checkpointer.save(step, state)
  read = storage.BucketPath.read_bytes
  failures = []

  def fail_once(path):
    if path.name == 'checkpoint_2' and not failures:
      failures.append(path)
      return read(path)[:-1]
    return read(path)

  monkeypatch.setattr(storage.BucketPath, 'read_bytes', fail_once)
  assert checkpointer.restore(trees.abstract(state)).step == 2
  assert failures and checkpoint_names(bucket) == [
    'checkpoint_1',
    'checkpoint_2',
  ]


@pytest.fixture
def bytes_read(monkeypatch, tmp_path):
  """Number of bytes that are read of each object, with TMPDIR of its own."""
  monkeypatch.setenv('TMPDIR', str(tmp_path))
  monkeypatch.setattr(tempfile, 'tempdir', None)
  counts = collections.Counter()
  read = storage.BucketPath.read_range

  def record_range(path, start, end):
    counts[path] += end - start
    return read(path, start, end)

  monkeypatch.setattr(storage.BucketPath, 'read_range', record_range)
  return counts


@pytest.mark.parametrize('use_ocdbt', [True, False])
def test_a_restore_reads_each_byte_once(
  bucket, bytes_read, tmp_path, use_ocdbt
):
  state = saved_states.state(1)
  create_checkpointer(bucket, use_ocdbt=use_ocdbt).save(
    3, state, {'examples': 3}
  )
  bytes_read.clear()
  restored = create_checkpointer(bucket).restore(trees.abstract(state))
  assert restored.step == 3 and restored.input_state == {'examples': 3}
  saved_states.check_equal(restored.state, state)
  (path,) = paths.steps(bucket / paths.CHECKPOINTS).values()
  assert bytes_read == {
    path / name: size for name, size in path.file_sizes().items()
  }
  assert not list(tmp_path.glob('pax_*'))


def test_only_the_leaves_that_are_read_are_downloaded(bucket, bytes_read):
  state = saved_states.state(1)
  create_checkpointer(bucket, use_ocdbt=False).save(3, state)
  ((_, path),) = reading.checkpoint_steps(str(bucket)).items()
  bytes_read.clear()
  checkpoint = checkpoint_reader.CheckpointReader(path)
  (name, leaf), *_ = paths.flatten(trees.abstract(state)).items()
  checkpoint.read({name: leaf})
  data = {
    file.parent.name
    for file in bytes_read
    if '/state/' in str(file) and file.name != '.zarray'
  }
  assert data == {name}


@pytest.mark.parametrize(
  ('layout', 'damage'),
  nightly.except_for(
    _DAMAGED_BY_DAY,
    itertools.product(bucket_damage.LAYOUTS, bucket_damage.DAMAGES),
  ),
)
def test_damage_of_any_object_is_found_and_survived(bucket, layout, damage):
  assert bucket_damage.check_damage(bucket, layout, damage)


def test_an_unexpected_object_is_damage(bucket):
  state = saved_states.state(1)
  create_checkpointer(bucket).save(1, state)
  (path,) = paths.steps(bucket / paths.CHECKPOINTS).values()
  for name in ('state/d/0', 'metadata/x', 'state/0.0'):
    (path / name).write_text('x')
    with pytest.raises(checkpoints.CorruptCheckpointError) as error:
      create_checkpointer(bucket).restore(trees.abstract(state))
    assert f'{path / name} is not part of the checkpoint' in str(error.value)
    (path / name).unlink()


def test_an_object_that_is_cut_after_its_size_was_read_is_damage(bucket):
  state = saved_states.state(1)
  create_checkpointer(bucket).save(1, state)
  (path,) = paths.steps(bucket / paths.CHECKPOINTS).values()
  checkpoint = checkpoint_reader.CheckpointReader(path)
  size, name = max((size, name) for name, size in path.file_sizes().items())
  file = path / name
  file.write_bytes(file.read_bytes()[: size // 2])
  with pytest.raises(checkpoints.CorruptCheckpointError) as error:
    checkpoint.read(paths.flatten(trees.abstract(state)))
  assert f'{file} is not what was written' in str(error.value)


@pytest.mark.parametrize(
  'method', ['download', 'read_bytes', 'read_range', 'file_sizes']
)
@pytest.mark.parametrize('layout', bucket_damage.LAYOUTS)
def test_a_bucket_that_cannot_be_read_is_not_set_aside(
  bucket, monkeypatch, layout, method
):
  if (layout == 'one_file') != (method == 'read_bytes'):
    pytest.skip('one object is read whole, and only it')
  kind, options = bucket_damage.LAYOUTS[layout]
  checkpointer = create_checkpointer(
    bucket, kind, skips_corrupt=True, **options
  )
  for step in (1, 2):
    checkpointer.save(step, saved_states.state(1))

  def fail(path, *args):
    raise OSError(errno.EIO, '503', str(path))

  with monkeypatch.context() as patch:
    patch.setattr(storage.BucketPath, method, fail)
    with pytest.raises(
      checkpoints.CheckpointError, match='2 cannot be read: .*503'
    ) as error:
      checkpointer.restore(trees.abstract(saved_states.state(1)))
  assert not isinstance(error.value, checkpoints.CorruptCheckpointError)
  assert steps(bucket) == [1, 2]


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
  checkpointer = create_checkpointer(bucket, FLAX, max_to_keep=1)
  checkpointer.pin(0, permanently=True)
  for step in range(3):
    checkpointer.save(step, saved_states.state(1))
  assert steps(bucket) == [0, 2]
  assert 'pinned_checkpoints.json' in bucket.files()
