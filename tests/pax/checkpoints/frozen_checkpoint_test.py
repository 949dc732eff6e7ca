# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Leaves that no step changes are saved once, for all checkpoints of a job."""

from __future__ import annotations

import pathlib
import re
import shutil
import types
import uuid

import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest

from pax import checkpoints
from pax.checkpoints import checkpoint_reader, paths
from pax.checkpoints.formats import manifest
from pax.files import storage
from tests.testing import bucket_damage, saved_states, trees

ROWS, COLUMNS = 'mdl_vars.params.rows', 'mdl_vars.params.columns'
BIAS = 'mdl_vars.params.bias'
FROZEN = (ROWS, COLUMNS)


def state(step, frozen_scale=1.0):
  """Returns a state whose bias and optimizer state are those of a step."""
  value = saved_states.state(4, frozen_scale)
  params = value['mdl_vars']['params']
  params['bias'] = params['bias'] + step
  value['opt_states'][0][0] = value['opt_states'][0][0] + step
  return value


def saver(directory, frozen=FROZEN, kind=saved_states.GDA, **options):
  checkpointer = saved_states.checkpointer(directory, kind, **options)
  checkpointer.set_frozen_leaves(frozen)
  return checkpointer


def without_digits(name):
  """Returns the name of a frozen checkpoint without its random digits."""
  return re.sub(r'^(frozen_\d{8})_[0-9a-f]{8}$', r'\1', name)


def names(directory):
  folder = pathlib.Path(directory) / paths.CHECKPOINTS
  found = [path.name for path in folder.iterdir()]
  return sorted(without_digits(x) for x in found if not x.startswith('.'))


def frozen_path(directory, step=0):
  folder = pathlib.Path(directory) / paths.CHECKPOINTS
  (path,) = folder.glob(f'frozen_{step:08d}_*')
  return path


def frozen_of(directory, step):
  path = paths.steps(pathlib.Path(directory) / paths.CHECKPOINTS)[step]
  name = checkpoint_reader.CheckpointReader(path).frozen_checkpoint
  return name and without_digits(name)


def check_restored(directory, step, expected, **options):
  checkpointer = saved_states.checkpointer(directory, **options)
  restored = checkpointer.restore(trees.abstract(expected), step)
  saved_states.check_equal(restored.state, expected)
  return checkpointer


@pytest.mark.parametrize(('kind', 'use_ocdbt'), saved_states.FORMATS)
def test_frozen_leaves_are_saved_once(tmp_path, kind, use_ocdbt):
  first = saver(tmp_path, kind=kind, use_ocdbt=use_ocdbt)
  for step in (0, 5):
    assert first.save(step, state(step), {'examples': step})
  first.close()
  restarted = saver(tmp_path, kind=kind, use_ocdbt=use_ocdbt)
  restored = restarted.restore(trees.abstract(state(5)))
  saved_states.check_equal(restored.state, state(5))
  assert restored.input_state == {'examples': 5}
  restarted.save(10, state(10))
  restarted.close()
  steps = [paths.checkpoint_name(step, kind) for step in (0, 5, 10)]
  assert names(tmp_path) == sorted([*steps, 'frozen_00000000'])
  for step in (0, 5, 10):
    check_restored(tmp_path, step, state(step))
  path = tmp_path / paths.CHECKPOINTS / steps[-1]
  reader = checkpoint_reader.CheckpointReader(path)
  assert reader.frozen_leaves == {*FROZEN}
  for shapes in (reader.shapes, reader.unpadded_variable_shapes()):
    assert shapes[ROWS] == ((16, 24), 'float32')
    assert shapes[BIAS] == ((3,), 'bfloat16')
  assert not any(
    name.encode() in file.read_bytes()
    for file in saved_states.files(path)
    for name in ('params.rows', 'params/rows')
  )


def test_a_leaf_that_learns_again_has_the_values_of_each_step(tmp_path):
  first = saver(tmp_path)
  first.save(0, state(0))
  first.close()
  second = saver(tmp_path, frozen=[COLUMNS])
  second.restore(trees.abstract(state(0)))
  learned = state(5)
  learned['mdl_vars']['params']['rows'] += 1
  second.save(5, learned)
  second.close()
  third = saver(tmp_path)
  third.restore(trees.abstract(state(0)))
  third.save(10, learned)
  third.close()
  assert [frozen_of(tmp_path, step) for step in (0, 5, 10)] == [
    'frozen_00000000',
    'frozen_00000000',
    # That of step 0 has other rows.
    'frozen_00000010',
  ]
  check_restored(tmp_path, 0, state(0))
  check_restored(tmp_path, 5, learned)
  check_restored(tmp_path, 10, learned)


def test_a_job_with_complete_checkpoints_goes_on_with_frozen_ones(tmp_path):
  first = saver(tmp_path, frozen=())
  first.save(0, state(0))
  first.close()
  second = saver(tmp_path)
  second.restore(trees.abstract(state(0)))
  second.save(5, state(5))
  second.close()
  assert frozen_of(tmp_path, 0) is None
  assert frozen_of(tmp_path, 5) == 'frozen_00000005'
  # Step 5 anew, while its frozen checkpoint is there.
  shutil.rmtree(tmp_path / paths.CHECKPOINTS / 'checkpoint_00000005')
  third = saver(tmp_path)
  third.restore(trees.abstract(state(0)))
  third.save(5, state(6, frozen_scale=2.0))
  third.close()
  assert names(tmp_path).count('frozen_00000005') == 2
  check_restored(tmp_path, 5, state(6, frozen_scale=2.0))


def test_a_frozen_checkpoint_without_any_step_is_removed(tmp_path):
  killed = saver(tmp_path)
  killed.save(0, state(0))
  killed.close()
  # As SIGKILL between the two leaves it.
  folder = tmp_path / paths.CHECKPOINTS
  shutil.rmtree(folder / 'checkpoint_00000000')
  (folder / f'.{frozen_path(tmp_path).name}.used').unlink()
  again = saver(tmp_path)
  assert again.latest_step() is None
  again.save(0, state(0, frozen_scale=3.0))
  again.close()
  assert names(tmp_path) == ['checkpoint_00000000', 'frozen_00000000']
  check_restored(tmp_path, 0, state(0, frozen_scale=3.0))


@pytest.mark.parametrize('kind', [saved_states.GDA, saved_states.FLAX])
def test_it_stays_for_checkpoints_that_were_moved_away(tmp_path, kind):
  first = saver(tmp_path, kind=kind)
  first.save(0, state(0))
  first.close()
  name = paths.checkpoint_name(0, kind)
  checkpoint = tmp_path / paths.CHECKPOINTS / name
  checkpoint.rename(tmp_path / name)
  again = saver(tmp_path, kind=kind)
  again.save(0, state(0, frozen_scale=2.0))
  again.close()
  assert names(tmp_path).count('frozen_00000000') == 2
  shutil.rmtree(checkpoint) if checkpoint.is_dir() else checkpoint.unlink()
  (tmp_path / name).rename(checkpoint)
  check_restored(tmp_path, 0, state(0))


def test_expired_and_archived_checkpoints_keep_it(tmp_path):
  options = {'max_to_keep': 1, 'todelete_subdir': 'archive'}
  checkpointer = saver(tmp_path, **options)
  for step in (0, 5):
    checkpointer.save(step, state(step))
  checkpointer.close()
  assert names(tmp_path) == [
    'archive',
    'checkpoint_00000005',
    'frozen_00000000',
  ]
  archived = tmp_path / paths.CHECKPOINTS / 'archive/checkpoint_00000000'
  assert ROWS in checkpoint_reader.CheckpointReader(archived).shapes
  # The next job removes nothing, with or without a checkpoint to go on from.
  shutil.rmtree(tmp_path / paths.CHECKPOINTS / 'checkpoint_00000005')
  again = saver(tmp_path, **options)
  again.save(0, state(0))
  again.close()
  assert names(tmp_path).count('frozen_00000000') == 2
  assert ROWS in checkpoint_reader.CheckpointReader(archived).shapes


def test_a_copy_without_it_names_what_is_missing(tmp_path):
  checkpointer = saver(tmp_path / 'job')
  checkpointer.save(0, state(0))
  checkpointer.close()
  frozen = frozen_path(tmp_path / 'job')
  copy = tmp_path / 'copy/checkpoints/checkpoint_00000000'
  shutil.copytree(tmp_path / 'job/checkpoints/checkpoint_00000000', copy)
  fallback = saver(tmp_path / 'copy', skips_corrupt=True)
  with pytest.raises(
    checkpoints.CheckpointError,
    match='has only the leaves that training changes; the others are in'
    rf' {frozen.name}, which must be next to it and is missing',
  ):
    fallback.restore(trees.abstract(state(0)))
  assert copy.exists()
  shutil.copytree(frozen, copy.parent / frozen.name)
  check_restored(tmp_path / 'copy', 0, state(0))


def test_one_of_another_job_is_not_taken_for_it(tmp_path):
  for name, scale in (('first', 1.0), ('second', 2.0)):
    checkpointer = saver(tmp_path / name)
    checkpointer.save(0, state(0, frozen_scale=scale))
    checkpointer.save(int(5 * scale), state(5, frozen_scale=scale))
    checkpointer.close()
  folders = [tmp_path / x / paths.CHECKPOINTS for x in ('first', 'second')]
  copy = 'checkpoint_00000010'
  shutil.copytree(folders[1] / copy, folders[0] / copy)
  with pytest.raises(checkpoints.CheckpointError, match='is missing'):
    check_restored(tmp_path / 'first', 10, state(5, frozen_scale=2.0))
  # Both fit into one folder.
  frozen = frozen_path(tmp_path / 'second')
  shutil.copytree(frozen, folders[0] / frozen.name)
  check_restored(tmp_path / 'first', 5, state(5))
  check_restored(tmp_path / 'first', 10, state(5, frozen_scale=2.0))


def test_it_is_saved_again_when_someone_has_removed_it(tmp_path):
  checkpointer = saver(tmp_path)
  checkpointer.save(0, state(0))
  checkpointer.wait()
  shutil.rmtree(frozen_path(tmp_path))
  checkpointer.save(5, state(5))
  checkpointer.save(10, state(10))
  checkpointer.close()
  assert frozen_of(tmp_path, 10) == 'frozen_00000005'
  check_restored(tmp_path, 5, state(5))
  check_restored(tmp_path, 10, state(10))


def test_a_job_with_transformations_saves_it_once(tmp_path):
  first = saver(tmp_path)
  first.save(0, state(0))
  first.close()
  for step, rules in (
    # No leaf of the job's own checkpoints is transformed by it.
    (5, {'mdl_vars/params/(.*)': r'mdl_vars/params/old_\1'}),
    (10, {'mdl_vars/params/columns': 'mdl_vars/params/rows'}),
  ):
    again = checkpoints.create_checkpointer(
      checkpoints.CheckpointOptions(save_interval_steps=5),
      str(tmp_path),
      restore_transformations=rules,
    )
    again.set_frozen_leaves(FROZEN)
    again.restore(trees.abstract(state(0)))
    again.save(step, state(step))
    again.close()
  assert names(tmp_path).count('frozen_00000000') == 1
  assert frozen_of(tmp_path, 10) == 'frozen_00000000'
  # A leaf that is another one there has values that no checkpoint has.
  resized = state(10)
  params = resized['mdl_vars']['params']
  params['columns'] = jnp.zeros((2, 2))
  rules = {
    'mdl_vars/params/columns': types.SimpleNamespace(
      original_key=None, value_fn=lambda x: x[:2, :2]
    )
  }
  third = checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(save_interval_steps=5),
    str(tmp_path),
    restore_transformations=rules,
  )
  third.set_frozen_leaves(FROZEN)
  resized = third.restore(trees.abstract(resized)).state
  third.save(15, resized)
  third.close()
  assert frozen_of(tmp_path, 15) == 'frozen_00000015'
  check_restored(tmp_path, 15, resized)


@pytest.mark.parametrize('damage', ['a data file', 'the name'])
def test_damage_of_it_is_found(tmp_path, damage):
  checkpointer = saver(tmp_path, use_ocdbt=False)
  checkpointer.save(0, state(0))
  checkpointer.close()
  folder = tmp_path / paths.CHECKPOINTS
  if damage == 'a data file':
    file = frozen_path(tmp_path) / f'state/{ROWS}/1.0'
    saved_states.flip_bit(file, 17)
    message = (
      'checkpoint .*frozen_00000000_[0-9a-f]{8} is corrupt: .* Nothing was'
      ' changed. The checkpoints that name it have only the other leaves: .*'
      ' continue from one that does not name it by'
      ' --on_corrupt_checkpoint=fallback'
    )
  else:
    checkpoint = folder / 'checkpoint_00000000'
    file = checkpoint / paths.METADATA_FILE
    file.write_text(file.read_text().replace('frozen_0', '../job/0'))
    entries = manifest.read(checkpoint)
    entries |= manifest.file_entries(checkpoint, [paths.METADATA_FILE])
    manifest.write(checkpoint, entries, 0, 1)
    message = r"must name a frozen checkpoint, .* got '../job/\w+'"
  with pytest.raises(checkpoints.CorruptCheckpointError, match=message):
    check_restored(tmp_path, 0, state(0))


def test_a_job_falls_back_to_a_checkpoint_that_does_not_name_it(tmp_path):
  first = saver(tmp_path, frozen=())
  first.save(0, state(0))
  first.close()
  second = saver(tmp_path, use_ocdbt=False)
  second.restore(trees.abstract(state(0)))
  for step in (5, 10):
    second.save(step, state(step))
  second.close()
  saved_states.flip_bit(frozen_path(tmp_path, 5) / f'state/{ROWS}/1.0', 17)
  third = saver(tmp_path, skips_corrupt=True)
  restored = third.restore(trees.abstract(state(0)))
  assert restored.step == 0
  third.save(5, state(5))
  third.close()
  assert [x for x in names(tmp_path) if 'corrupt' in x] == [
    'corrupt_checkpoint_00000005',
    'corrupt_checkpoint_00000010',
  ]
  check_restored(tmp_path, 5, state(5))


def test_a_reader_of_other_leaves_does_not_read_it(tmp_path):
  checkpointer = saver(tmp_path, use_ocdbt=False)
  checkpointer.save(0, state(0))
  checkpointer.close()
  folder = tmp_path / paths.CHECKPOINTS
  saved_states.flip_bit(frozen_path(tmp_path) / f'state/{ROWS}/1.0', 17)
  reader = checkpoint_reader.CheckpointReader(folder / 'checkpoint_00000000')
  bias = paths.flatten(trees.abstract(state(0)))[BIAS]
  saved_states.check_equal(
    reader.read({BIAS: bias}), {BIAS: jnp.arange(3, dtype=jnp.bfloat16)}
  )
  with pytest.raises(checkpoints.CorruptCheckpointError):
    reader.verify()


def test_a_failed_save_writes_it_again(tmp_path):
  failures = [OSError('no space')]

  def fail():
    if failures:
      raise failures.pop()

  checkpointer = checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(save_interval_steps=5, asynchronous=False),
    str(tmp_path),
    job=checkpoints.JobFunctions(before_write=fail),
  )
  checkpointer.set_frozen_leaves(FROZEN)
  with pytest.raises(checkpoints.CheckpointError, match='no space'):
    checkpointer.save(0, state(0))
  assert not (tmp_path / paths.CHECKPOINTS).exists()
  checkpointer.save(5, state(5))
  # Another save fails when the frozen leaves are on the disk.
  failures.append(OSError('no space'))
  with pytest.raises(checkpoints.CheckpointError, match='no space'):
    checkpointer.save(10, state(10))
  checkpointer.save(15, state(15))
  assert names(tmp_path) == [
    'checkpoint_00000005',
    'checkpoint_00000015',
    'frozen_00000005',
  ]
  check_restored(tmp_path, 15, state(15))


def test_orbax_restores_the_other_leaves(tmp_path):
  checkpointer = saver(tmp_path)
  checkpointer.save(0, state(0))
  checkpointer.close()
  folder = tmp_path / paths.CHECKPOINTS
  own, frozen = (
    ocp.StandardCheckpointer().restore(path / 'state')
    for path in (folder / 'checkpoint_00000000', frozen_path(tmp_path))
  )
  expected = state(0)
  params = expected['mdl_vars']['params']
  saved_states.check_equal(own['mdl_vars']['params']['bias'], params['bias'])
  assert own['mdl_vars']['params']['rows'] is None
  for name in ('rows', 'columns'):
    saved_states.check_equal(frozen['mdl_vars']['params'][name], params[name])
  assert frozen['step'] is None


@pytest.mark.parametrize('layout', sorted(bucket_damage.LAYOUTS))
def test_in_a_bucket(layout):
  bucket = storage.to_path(f'memory://{uuid.uuid4().hex}/run')
  kind, options = bucket_damage.LAYOUTS[layout]
  part = bucket / paths.CHECKPOINTS / 'frozen_00000000_0123abcd/state/d/1'
  part.write_text('x')
  value = saved_states.state(1)
  for step in (0, 1):
    checkpointer = bucket_damage.create_checkpointer(bucket, kind, **options)
    checkpointer.set_frozen_leaves(FROZEN)
    if step:
      checkpointer.restore(trees.abstract(value))
    checkpointer.save(step, value)
  found = bucket_damage.checkpoint_names(bucket)
  assert [without_digits(x) for x in found if not x.startswith('.')] == [
    *(paths.checkpoint_name(step, kind) for step in (0, 1)),
    'frozen_00000000',
  ]
  assert not part.exists()
  checkpointer = bucket_damage.create_checkpointer(bucket, kind, **options)
  saved_states.check_equal(
    checkpointer.restore(trees.abstract(value)).state, value
  )
