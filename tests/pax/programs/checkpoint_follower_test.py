# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Which checkpoints a job looks at, in which order, and when it ends."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import checkpoints, io_utils, train_states
from pax.checkpoints.checkpoint_reader import CheckpointReader
from pax.programs import checkpoint_follower
from pax.programs.stopping import preemption
from tests.testing import saved_states, trees

EVAL = io_utils.EvaluationMode.EVAL


class Reader:
  """The state is the name of the checkpoint."""

  def read(self, path):
    if not path.exists():
      raise FileNotFoundError(path)
    return path.name


class Preemption:
  """Does something at certain checks."""

  def __init__(self, **actions):
    self._actions = actions
    self._count = 0

  def raise_if_requested(self):
    self._count += 1
    self._actions.get(f'at_{self._count}', lambda: None)()

  def sleep(self, seconds):
    time.sleep(seconds)


def _save(tmp_path, *steps):
  for step in steps:
    (tmp_path / 'checkpoints' / f'checkpoint_{step:08d}').mkdir(parents=True)


def _following(tmp_path, **fields):
  defaults = {
    'reader': Reader(),
    'job_log_dir': str(tmp_path),
    'directory': tmp_path / 'checkpoints',
    'mode': EVAL,
    'last_step': 30,
    'first_step': 0,
    'first_timeout_secs': 5.0,
    'next_timeout_secs': 5.0,
    'preemption': Preemption(),
  }
  return checkpoint_follower.CheckpointFollower(**defaults | fields)


def _seen(source):
  return [(step, is_last) for step, _, is_last in source.states()]


def test_begins_with_the_newest_and_takes_each_later_one_in_order(tmp_path):
  _save(tmp_path, 0, 10)
  more = Preemption(at_3=lambda: _save(tmp_path, 20, 30))
  found = _seen(_following(tmp_path, preemption=more))
  assert found == [(10, False), (20, False), (30, True)]


def test_a_checkpoint_in_place_of_its_folder_is_refused(tmp_path):
  folder = saved_states.save(tmp_path)
  source = _following(tmp_path, directory=folder / 'checkpoint_00000005')
  message = f'it is a checkpoint itself, give the folder {folder}$'
  with pytest.raises(checkpoints.CheckpointError, match=message):
    _seen(source)
  (tmp_path / 'a.yaml').touch()
  with pytest.raises(checkpoints.CheckpointError, match='it is a file$'):
    _seen(_following(tmp_path, directory=tmp_path / 'a.yaml'))
  # That of a job which has not saved yet.
  job = tmp_path / 'checkpoint_7'
  (job / 'logs').mkdir(parents=True)
  more = Preemption(at_2=lambda: _save(job, 30))
  source = _following(tmp_path, directory=job, preemption=more)
  assert _seen(source) == [(30, True)]


def test_waits_for_the_first(tmp_path):
  more = Preemption(at_2=lambda: _save(tmp_path, 30))
  assert _seen(_following(tmp_path, preemption=more)) == [(30, True)]


def test_begins_with_what_was_left_undone(tmp_path):
  _save(tmp_path, 0, 10, 30)
  try:
    with io_utils.checkpoint_progress(tmp_path, 10, EVAL):
      raise KeyboardInterrupt
  except KeyboardInterrupt:
    pass
  assert _seen(_following(tmp_path)) == [(10, False), (30, True)]


def test_ends_where_training_did(tmp_path):
  _save(tmp_path, 10)
  ends = Preemption(at_3=lambda: io_utils.record_training_end(tmp_path, 10))
  assert _seen(_following(tmp_path, preemption=ends)) == [(10, False)]
  assert _seen(_following(tmp_path)) == [(10, True)]


def test_the_end_of_another_job_is_seen(tmp_path):
  own, other = tmp_path / 'own', tmp_path / 'other'
  _save(other, 10)
  io_utils.record_training_end(other, 10)
  for directory in (other, other / 'checkpoints'):
    source = _following(tmp_path, job_log_dir=str(own), directory=directory)
    assert _seen(source) == [(10, True)]


def test_steps_before_the_first_that_counts_are_left_out(tmp_path):
  _save(tmp_path, 0)
  more = Preemption(at_2=lambda: _save(tmp_path, 30))
  found = _seen(_following(tmp_path, first_step=5, preemption=more))
  assert found == [(30, True)]


def test_training_may_end_before_the_first_that_counts(tmp_path):
  _save(tmp_path, 0, 10)
  ends = Preemption(at_3=lambda: io_utils.record_training_end(tmp_path, 10))
  found = _seen(_following(tmp_path, first_step=20, preemption=ends))
  assert found == [(10, True)]


def test_begins_with_the_oldest_from_the_step_that_is_asked_for(tmp_path):
  _save(tmp_path, 0, 10, 20, 30)
  found = _seen(_following(tmp_path, first_step=10, from_oldest=True))
  assert found == [(10, False), (20, False), (30, True)]
  between = _seen(_following(tmp_path, first_step=15, from_oldest=True))
  assert between == [(20, False), (30, True)]


def test_what_was_left_undone_comes_before_the_oldest(tmp_path):
  _save(tmp_path, 10, 20, 30)
  with pytest.raises(KeyboardInterrupt):
    with io_utils.checkpoint_progress(str(tmp_path), 20, EVAL):
      raise KeyboardInterrupt
  found = _seen(_following(tmp_path, first_step=10, from_oldest=True))
  assert found == [(20, False), (30, True)]


def test_one_that_was_deleted_meanwhile_is_passed_over(tmp_path):
  _save(tmp_path, 10)

  class Gone(Reader):
    def read(self, path):
      if path.name.endswith('10'):
        path.rmdir()
        _save(tmp_path, 30)
      return super().read(path)

  assert _seen(_following(tmp_path, reader=Gone())) == [(30, True)]


def test_one_that_another_process_cannot_read_is_passed_over(
  tmp_path, monkeypatch
):
  _save(tmp_path, 10)
  others = iter([False, True])

  def is_set(flag):
    can_others_read = next(others)
    if not can_others_read:
      (tmp_path / 'checkpoints/checkpoint_00000010').rmdir()
      _save(tmp_path, 30)
    return flag and can_others_read

  monkeypatch.setattr(checkpoint_follower, 'is_set_on_all_processes', is_set)
  assert _seen(_following(tmp_path)) == [(30, True)]


def test_one_that_another_process_sees_late_is_awaited(tmp_path, monkeypatch):
  monkeypatch.setattr(checkpoint_follower, '_LAST_POLL_SECS', 0.01)
  _save(tmp_path, 10, 30)
  others = iter([False, False, True])
  monkeypatch.setattr(
    checkpoint_follower,
    'is_set_on_all_processes',
    lambda flag: next(others) and flag,
  )
  assert _seen(_following(tmp_path)) == [(30, True)]


def test_one_that_another_process_never_sees_is_an_error(tmp_path, monkeypatch):
  monkeypatch.setattr(checkpoint_follower, '_LAST_POLL_SECS', 0.01)
  monkeypatch.setattr(checkpoint_follower, '_LATE_SECS', -1)
  monkeypatch.setattr(
    checkpoint_follower, 'is_set_on_all_processes', lambda _: False
  )
  _save(tmp_path, 30)
  message = (
    f'another process does not see the checkpoint of step 30 in {tmp_path}'
  )
  with pytest.raises(checkpoints.CheckpointError, match=message):
    _seen(_following(tmp_path))


def test_a_damaged_checkpoint_is_an_error_with_the_remedy(tmp_path):
  class StepReader:
    def read(self, path):
      step = {'step': jax.ShapeDtypeStruct((), np.uint32)}
      return CheckpointReader(path).read(step)

  directory = saved_states.save(tmp_path, steps=(20, 30))
  checkpoint = directory / 'checkpoint_00000030'
  saved_states.flip_bit(checkpoint / 'state/manifest.ocdbt', 3)
  source = _following(tmp_path, reader=StepReader(), last_step=20)
  with pytest.raises(checkpoints.CorruptCheckpointError) as error:
    _seen(source)
  *_, old, new = str(error.value).split()
  assert old == str(checkpoint)
  checkpoint.rename(new)
  assert _seen(source) == [(20, True)]


def test_waiting_too_long(tmp_path):
  wait = _following(tmp_path, first_timeout_secs=0.0)
  with pytest.raises(ValueError, match='no checkpoint appeared'):
    _seen(wait)
  _save(tmp_path, 10)
  wait = _following(tmp_path, next_timeout_secs=0.0)
  with pytest.raises(ValueError, match='no checkpoint after step 10'):
    _seen(wait)
  wait = _following(tmp_path, first_step=15, first_timeout_secs=0.0)
  with pytest.raises(ValueError, match='checkpoint of step 15 or later app'):
    _seen(wait)


def test_says_once_what_it_waits_for(tmp_path):
  lines = []
  more = Preemption(at_4=lambda: _save(tmp_path, 20, 30))
  source = _following(
    tmp_path, first_step=20, preemption=more, print_line=lines.append
  )
  assert _seen(source) == [(30, True)]
  assert lines == [
    'waiting for a checkpoint of step 20 or later in'
    f' {tmp_path / "checkpoints"}, for at most 5 s'
  ]


def test_a_signal_ends_the_wait(tmp_path):
  def stop():
    raise preemption.PreemptedError

  with pytest.raises(preemption.PreemptedError):
    _seen(_following(tmp_path, preemption=Preemption(at_2=stop)))


def test_chosen_steps_and_the_newest(tmp_path):
  _save(tmp_path, 0, 10, 20)

  def chosen(*steps):
    return checkpoint_follower.SelectedCheckpoints(
      reader=Reader(), directory=tmp_path / 'checkpoints', steps=steps
    )

  assert _seen(chosen(10, 0)) == [(10, False), (0, True)]
  assert _seen(chosen()) == [(20, True)]
  with pytest.raises(ValueError, match='no checkpoint of step 5'):
    _seen(chosen(5))


@pytest.mark.parametrize('has_states', [True, False])
def test_variables_stand_for_averages_that_a_conversion_left_out(
  tmp_path, has_states
):
  mesh = jax.make_mesh((1,), ('data',), devices=jax.devices()[:1])
  place = lambda x: jax.device_put(
    x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  )
  state = train_states.TrainState(
    step=place(jnp.uint32(5)),
    mdl_vars={'params': {'w': place(jnp.float32(1.0))}},
    opt_states=[{'ema': {'params': {'w': place(jnp.float32(2.0))}}}],
  )
  writer = checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(), str(tmp_path)
  )
  saved = state if has_states else state.to_eval_state()
  writer.save(5, saved, force=True)
  writer.close()
  reader = checkpoint_follower.StateReader(
    state=trees.abstract(state), use_ema=True
  )
  read = reader.read(tmp_path / 'checkpoints' / 'checkpoint_00000005')
  assert float(read.mdl_vars['params']['w']) == (2.0 if has_states else 1.0)
