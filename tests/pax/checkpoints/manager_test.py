# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Saving, restoring on other meshes, retention, and what a torn file does."""

from __future__ import annotations

import json
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import checkpoints
from pax.checkpoints import paths, pins, reading
from pax.checkpoints.formats import host_arrays, tensorstore_format
from tests.testing import polling, saved_states, trees

GDA = checkpoints.CheckpointType.GDA
FLAX = checkpoints.CheckpointType.FLAX


@pytest.mark.parametrize(('kind', 'use_ocdbt'), saved_states.FORMATS)
@pytest.mark.parametrize('num_devices', [1, 2, 8])
def test_restores_on_another_number_of_devices(
  tmp_path, kind, use_ocdbt, num_devices
):
  saved_states.save(tmp_path, kind, num_devices=4, use_ocdbt=use_ocdbt)
  target = saved_states.state(num_devices)
  restored = saved_states.checkpointer(tmp_path, GDA).restore(
    trees.abstract(target)
  )
  assert restored.step == 5
  assert restored.input_state == {'examples': 5}
  saved_states.check_equal(restored.state, saved_states.state(4, scale=6.0))
  assert jax.tree.all(
    jax.tree.map(
      lambda a, b: a.sharding == b.sharding and a.dtype == b.dtype,
      restored.state,
      target,
    )
  )


def test_each_checkpoint_is_printed_when_it_is_saved_or_restored(tmp_path):
  lines = []
  saver, restorer = (
    checkpoints.create_checkpointer(
      checkpoints.CheckpointOptions(save_interval_steps=5),
      str(tmp_path),
      job=checkpoints.JobFunctions(print_line=lines.append),
    )
    for _ in range(2)
  )
  state = saved_states.state(1)
  for step in (0, 3, 5):
    saver.save(step, state)
  saver.close()
  folder = f'{tmp_path}/checkpoints'
  saved = [f'step {k}: saved in {folder}/checkpoint_0000000{k}' for k in (0, 5)]
  assert lines == saved
  restorer.restore(trees.abstract(state))
  assert lines[2:] == [f'step 5: restored from {folder}/checkpoint_00000005']


def test_layout_of_the_leaf_kind(tmp_path):
  checkpoints_dir = saved_states.save(tmp_path, steps=(0,), use_ocdbt=False)
  directory = checkpoints_dir / 'checkpoint_00000000'
  assert {p.name for p in directory.iterdir()} == {
    'state', 'metadata', 'train_input', 'manifest'
  }  # fmt: skip
  assert {p.name for p in (directory / 'state').iterdir()} == {
    'mdl_vars.params.bias',
    'mdl_vars.params.columns',
    'mdl_vars.params.rows',
    'opt_states_0_0',
    'opt_states_0_1',
    'step',
  }
  rows = {p.name for p in (directory / 'state/mdl_vars.params.rows').iterdir()}
  assert rows == {'.zarray', '0.0', '1.0', '2.0', '3.0'}
  assert json.loads((directory / 'metadata').read_text())['version'] == 1.1
  assert (directory / 'train_input/process_0-of-1').exists()


def test_the_blob_kind_is_one_file(tmp_path):
  directory = saved_states.save(tmp_path, FLAX)
  assert {p.name for p in directory.iterdir()} == {
    'checkpoint_0', 'checkpoint_5'
  }  # fmt: skip
  assert all(p.is_file() for p in directory.iterdir())


def test_saves_when_due_or_forced_and_once(tmp_path):
  checkpointer, state = (
    saved_states.checkpointer(tmp_path),
    saved_states.state(1),
  )
  saved = [step for step in range(12) if checkpointer.save(step, state)]
  assert saved == [0, 5, 10]
  assert checkpointer.save(12, state, force=True)
  assert not checkpointer.save(12, state, force=True)
  checkpointer.close()
  assert checkpointer.latest_step() == 12
  assert not saved_states.checkpointer(tmp_path).save(12, state, force=True)


def test_saves_nothing_when_switched_off(tmp_path):
  checkpointer = saved_states.checkpointer(tmp_path, saving=False)
  assert not checkpointer.save(0, saved_states.state(1), force=True)
  checkpointer.close()
  assert checkpointer.latest_step() is None


@pytest.mark.parametrize(('kind', 'use_ocdbt'), saved_states.FORMATS)
def test_what_was_saved_does_not_change_when_buffers_are_donated(
  tmp_path, kind, use_ocdbt
):
  checkpointer, state = (
    saved_states.checkpointer(tmp_path, kind, use_ocdbt=use_ocdbt),
    saved_states.state(2),
  )
  # The checksums of its files come from its memory.
  state['large'] = jnp.arange(2.0**18)
  wanted = jax.tree.map(np.array, state)
  checkpointer.save(0, state)
  double = jax.jit(lambda s: jax.tree.map(lambda x: x + x, s), donate_argnums=0)
  for _ in range(5):
    state = double(state)
  checkpointer.close()
  restored = saved_states.checkpointer(tmp_path).restore(trees.abstract(state))
  saved_states.check_equal(restored.state, wanted)


def test_keeps_the_newest(tmp_path):
  checkpointer = saved_states.checkpointer(tmp_path, max_to_keep=2)
  for step in range(0, 25, 5):
    checkpointer.save(step, saved_states.state(1))
  checkpointer.close()
  names_left = sorted(p.name for p in (tmp_path / 'checkpoints').iterdir())
  assert names_left == ['checkpoint_00000015', 'checkpoint_00000020']


def test_a_link_to_a_checkpoint_expires_alone(tmp_path):
  linked = saved_states.save(tmp_path / 'other') / 'checkpoint_00000005'
  directory = tmp_path / 'job' / 'checkpoints'
  directory.mkdir(parents=True)
  (directory / linked.name).symlink_to(linked)
  checkpointer = saved_states.checkpointer(tmp_path / 'job', max_to_keep=1)
  checkpointer.save(10, saved_states.state(1))
  checkpointer.close()
  assert [p.name for p in directory.iterdir()] == ['checkpoint_00000010']
  assert (linked / 'state').exists()


def test_an_archived_step_replaces_that_of_an_earlier_run(tmp_path):
  archived = tmp_path / 'checkpoints' / 'old' / 'checkpoint_00000000'
  archived.mkdir(parents=True)
  (archived / 'stale').touch()
  checkpointer = saved_states.checkpointer(
    tmp_path, max_to_keep=1, todelete_subdir='old'
  )
  for step in range(0, 15, 5):
    checkpointer.save(step, saved_states.state(1))
  checkpointer.close()
  names = sorted(p.name for p in archived.parent.iterdir())
  assert names == ['checkpoint_00000000', 'checkpoint_00000005']
  assert not (archived / 'stale').exists()
  assert list(paths.steps(tmp_path / 'checkpoints')) == [10]


def test_keeps_pinned_checkpoints_until_they_are_unpinned(tmp_path):
  checkpointer = saved_states.checkpointer(tmp_path, max_to_keep=1)
  checkpointer.pin(5)
  for step in range(0, 25, 5):
    checkpointer.save(step, saved_states.state(1))
  checkpointer.wait()
  assert list(paths.steps(tmp_path / 'checkpoints')) == [5, 20]
  checkpointer.unpin(5)
  checkpointer.save(25, saved_states.state(1))
  checkpointer.close()
  assert list(paths.steps(tmp_path / 'checkpoints')) == [25]


@pytest.mark.parametrize(
  'text', [None, '{"steps": "5"}', '', '{"steps": [1.5]}']
)
def test_permanent_pins_outlive_the_checkpointer(tmp_path, text):
  checkpointer = saved_states.checkpointer(tmp_path, max_to_keep=1)
  checkpointer.pin(0, permanently=True)
  for step in (0, 5, 10):
    checkpointer.save(step, saved_states.state(1))
  checkpointer.close()
  if text is not None:
    (tmp_path / pins.FILE).write_text(text)
  again = saved_states.checkpointer(tmp_path, max_to_keep=1)
  again.pin(0)
  again.unpin(0)
  again.save(15, saved_states.state(1))
  again.close()
  # A damaged file pins nothing and is set aside.
  expected = [0, 15] if text is None else [15]
  assert list(paths.steps(tmp_path / 'checkpoints')) == expected
  assert (tmp_path / pins.FILE).exists() == (text is None)


def test_never_deletes_the_checkpoint_just_saved(tmp_path):
  # Below the steps of another run's checkpoints.
  directory = saved_states.save(tmp_path, steps=(50, 55))
  checkpointer = saved_states.checkpointer(tmp_path, max_to_keep=1)
  checkpointer.save(10, saved_states.state(1))
  checkpointer.close()
  assert list(paths.steps(directory)) == [10, 55]


def test_a_deletion_that_fails_does_not_fail_the_save(tmp_path, monkeypatch):
  directory = saved_states.save(tmp_path)

  def fail(path):
    raise PermissionError(13, 'Permission denied', str(path))

  monkeypatch.setattr(paths, 'delete', fail)
  checkpointer = saved_states.checkpointer(tmp_path, max_to_keep=1)
  checkpointer.save(10, saved_states.state(1))
  checkpointer.close()
  assert list(paths.steps(directory)) == [0, 5, 10]


def test_removes_what_a_killed_process_left(tmp_path):
  directory = saved_states.save(tmp_path)
  torn = directory / 'tmp_checkpoint_00000010' / 'state'
  torn.mkdir(parents=True)
  (directory / 'tmp_delete_checkpoint_00000000').mkdir()
  checkpointer = saved_states.checkpointer(tmp_path)
  assert checkpointer.restore(trees.abstract(saved_states.state(4))).step == 5
  assert torn.exists()
  assert checkpointer.save(10, saved_states.state(1))
  checkpointer.close()
  assert sorted(p.name for p in directory.iterdir()) == [
    'checkpoint_00000000', 'checkpoint_00000005', 'checkpoint_00000010'
  ]  # fmt: skip
  assert checkpointer.latest_step() == 10


@pytest.mark.parametrize(('kind', 'use_ocdbt'), saved_states.FORMATS)
def test_another_model_is_refused(tmp_path, kind, use_ocdbt):
  saved_states.save(tmp_path, kind, use_ocdbt=use_ocdbt)
  other = trees.abstract(saved_states.state(4))
  other['mdl_vars']['params']['bias'] = jax.ShapeDtypeStruct((4,), jnp.bfloat16)
  with pytest.raises(checkpoints.CheckpointError) as error:
    saved_states.checkpointer(tmp_path, kind).restore(other)
  assert 'mdl_vars.params.bias is bfloat16[3], expected bfloat16[4]' in str(
    error.value
  )
  del other['mdl_vars']['params']['bias']
  with pytest.raises(checkpoints.CheckpointError, match='is not in the model'):
    saved_states.checkpointer(tmp_path, kind).restore(other)


@pytest.mark.parametrize(('kind', 'use_ocdbt'), saved_states.FORMATS)
def test_keys_are_refused_before_they_are_lost(tmp_path, kind, use_ocdbt):
  checkpointer = saved_states.checkpointer(tmp_path, kind, use_ocdbt=use_ocdbt)
  state = {**saved_states.state(1), 'rng': jax.random.key(0)}
  with pytest.raises(ValueError, match='rng must be .*, got one of key<fry>'):
    checkpointer.save(5, state)
  state['rng'] = jax.random.key_data(state['rng'])
  assert checkpointer.save(5, state)
  checkpointer.close()


def test_weights_without_an_optimizer_are_named(tmp_path):
  checkpointer = saved_states.checkpointer(tmp_path)
  weights = {'mdl_vars': {'w': jnp.ones(3)}, 'step': jnp.uint32(5)}
  checkpointer.save(5, weights)
  message = f'start from them by --init_from={tmp_path}/checkpoints with a new'
  state = trees.abstract({**weights, 'opt_states': [{'m': jnp.ones(3)}]})
  with pytest.raises(checkpoints.CheckpointError, match=message):
    checkpointer.restore(state)
  # As conversions of bfloat16 have it.
  state['mdl_vars']['w'] = jax.ShapeDtypeStruct((3,), jnp.bfloat16)
  with pytest.raises(checkpoints.CheckpointError, match=message):
    checkpointer.restore(state)
  state['mdl_vars']['bias'] = state['step']
  with pytest.raises(
    checkpoints.CheckpointError, match='another model: .*bias'
  ):
    checkpointer.restore(state)
  checkpointer.close()


def test_a_directory_without_checkpoints_is_no_source(tmp_path):
  message = 'no checkpoint in .*/checkpoints; available steps: none; give the'
  with pytest.raises(checkpoints.CheckpointError, match=message):
    saved_states.checkpointer(tmp_path).restore(
      trees.abstract(saved_states.state(1))
    )


def test_an_unknown_step_lists_those_there_are(tmp_path):
  saved_states.save(tmp_path)
  with pytest.raises(
    checkpoints.CheckpointError, match=r'available steps: \[0, 5\]'
  ):
    saved_states.checkpointer(tmp_path).restore(
      trees.abstract(saved_states.state(4)), step=3
    )


@pytest.mark.parametrize('kind', [GDA, FLAX])
def test_a_checkpoint_in_place_of_its_folder_is_named(tmp_path, kind):
  saved_states.save(tmp_path, kind)
  step, path = reading.find_checkpoint(tmp_path)
  assert step == 5
  message = f'; it is a checkpoint itself, give the folder {path.parent}$'
  with pytest.raises(checkpoints.CheckpointError, match=message):
    reading.find_checkpoint(path)
  (tmp_path / 'a.yaml').touch()
  for name in ('a.yaml', 'checkpoint_400'):
    with pytest.raises(
      checkpoints.CheckpointError,
      match='steps: none; give the directory of a job',
    ):
      reading.find_checkpoint(tmp_path / name)


def test_a_folder_of_huggingface_is_named(tmp_path):
  (tmp_path / 'config.json').touch()
  message = f'steps: none; a folder .* is --init_from=hf:{tmp_path}$'
  with pytest.raises(checkpoints.CheckpointError, match=message):
    reading.find_checkpoint(tmp_path)


def test_a_failed_write_is_raised_and_leaves_the_older(tmp_path):
  directory = saved_states.save(tmp_path)
  checkpointer = saved_states.checkpointer(tmp_path)
  assert checkpointer.save(10, saved_states.state(1))
  checkpointer.wait()
  (directory / 'checkpoint_00000015').write_text('in the way')
  checkpointer.save(15, saved_states.state(1))
  with pytest.raises(checkpoints.CheckpointError, match='cannot write'):
    checkpointer.wait()
  assert checkpointer.latest_step() == 10


def test_a_job_directory_that_vanished_is_not_created_anew(tmp_path):
  job = tmp_path / 'job'
  checkpointer = saved_states.checkpointer(job)
  checkpointer.save(0, saved_states.state(1))
  checkpointer.wait()
  job.rename(tmp_path / 'elsewhere')
  checkpointer.save(5, saved_states.state(1))
  with pytest.raises(checkpoints.CheckpointError, match='No such file'):
    checkpointer.close()
  assert not job.exists()


@pytest.mark.parametrize('is_moved', [False, True])
def test_a_directory_that_vanishes_within_a_save(
  tmp_path, monkeypatch, is_moved
):
  """TensorStore creates missing parents, but not those of a job."""
  staging = tmp_path / 'job' / 'checkpoints' / 'tmp_checkpoint_00000001'
  staging.mkdir(parents=True)

  def vanish(*args, write_leaf=tensorstore_format._write_leaf):
    if is_moved:
      (tmp_path / 'job').rename(tmp_path / 'moved')
    else:
      shutil.rmtree(tmp_path / 'job')
    return write_leaf(*args)

  monkeypatch.setattr(tensorstore_format, '_write_leaf', vanish)
  snapshot = host_arrays.snapshot({'a': jnp.ones([4, 4])})
  if is_moved:
    tensorstore_format.write(staging, snapshot)
  else:
    with pytest.raises(OSError, match=f'failed at {staging}/state/a'):
      tensorstore_format.write(staging, snapshot)
  assert not (tmp_path / 'job').exists()


def test_two_leaves_of_one_name_are_refused():
  with pytest.raises(ValueError, match='are both called'):
    paths.flatten({'a': {'b.c': 1}, 'a.b': {'c': 2}})


def test_replicated_leaves_are_written_once():
  snapshot = host_arrays.snapshot(paths.flatten(saved_states.state(8)))
  assert len(snapshot['step'].parts) == 1
  assert len(snapshot['mdl_vars.params.rows'].parts) == 8


def test_digit_directories_are_read(tmp_path):
  directory = saved_states.save(tmp_path, steps=(5,))
  (directory / 'checkpoint_00000005').rename(directory / '5')
  assert (
    saved_states.checkpointer(tmp_path)
    .restore(trees.abstract(saved_states.state(4)))
    .step
    == 5
  )


def test_abandons_a_write_that_does_not_end(tmp_path, monkeypatch):
  checkpointer, release = saved_states.checkpointer(tmp_path), threading.Event()
  monkeypatch.setattr(checkpointer, '_prepare', lambda *unused: release.wait())
  checkpointer.save(0, saved_states.state(1))
  checkpointer.abandon(timeout_secs=0.01)
  release.set()


def test_abandons_a_write_that_failed_without_raising(tmp_path):
  checkpointer = saved_states.checkpointer(tmp_path)
  checkpointer.save(0, saved_states.state(1))
  checkpointer.wait()
  (tmp_path / 'checkpoints/checkpoint_00000005').write_text('in the way')
  checkpointer.save(5, saved_states.state(1))
  checkpointer.abandon(timeout_secs=60)
  assert checkpointer.latest_step() == 0


def test_a_write_that_failed_ends_training_at_the_next_step(tmp_path):
  checkpointer = saved_states.checkpointer(tmp_path)
  (tmp_path / 'checkpoints').mkdir()
  (tmp_path / 'checkpoints/checkpoint_00000005').write_text('in the way')
  checkpointer.save(5, saved_states.state(1))
  raised = []

  def has_failed():
    try:
      # No checkpoint is due.
      assert not checkpointer.save(6, saved_states.state(1))
    except checkpoints.CheckpointError as e:
      raised.append(str(e))
    return bool(raised)

  polling.wait_until(has_failed)
  assert 'nothing is overwritten' in raised[0]
