# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The checkpointer of loops that executors of users contain."""

from __future__ import annotations

import types

import pytest

from pax import checkpoints, summaries
from pax.programs import initial_state, training_checkpointer
from tests.testing import noop_checkpointer


class Computing:
  """A state that the devices compute, in seven seconds from the first wait."""

  def __init__(self, clock):
    self._clock, self._is_ready = clock, False

  def block_until_ready(self):
    if not self._is_ready:
      self._clock.now += 7
    self._is_ready = True
    return self


class TwoSeconds(noop_checkpointer.NoopCheckpointer):
  """Waits for each state, as the copy to the host does, and two seconds."""

  def __init__(self, clock, every):
    self._clock, self._every = clock, every

  def is_due(self, step, *, force=False):
    return force or step % self._every == 0

  def save(self, step, state, input_state=None, *, force=False):
    if not self.is_due(step, force=force):
      return False
    state.block_until_ready()
    self._clock.now += 2
    return True


def test_the_ledger_separates_steps_from_saves():
  clock = types.SimpleNamespace(now=0.0)
  recorder = summaries.goodput.Recorder(None, lambda: clock.now)
  checkpointer = training_checkpointer.TrainingCheckpointer(
    types.SimpleNamespace(
      checkpoints=TwoSeconds(clock, every=2),
      goodput=recorder,
      preemption=types.SimpleNamespace(
        stop_requested=lambda: False, save_requested=lambda: False
      ),
    )
  )
  state = Computing(clock)
  state.block_until_ready()
  for step in range(5):
    checkpointer.save_if_needed(step, state)
    state = Computing(clock)
  checkpointer.close()
  seconds = recorder._record()['seconds']
  # The first state is that of the start; steps 2 and 4 are waited for.
  assert seconds['start'] == 7
  assert seconds['checkpoint'] == 3 * 2
  assert seconds['step'] == 2 * 7


def test_the_ledger_is_finished_by_the_final_save():
  recorder = summaries.goodput.Recorder(None)
  checkpointer = training_checkpointer.TrainingCheckpointer(
    types.SimpleNamespace(
      checkpoints=noop_checkpointer.NoopCheckpointer(),
      goodput=recorder,
      preemption=types.SimpleNamespace(begin_saving=lambda: None),
    )
  )
  assert 'finished' not in recorder._record()
  checkpointer.save_final(3, partitioned_train_state=None)
  assert recorder._record()['finished']


class RenamedFolder(noop_checkpointer.NoopCheckpointer):
  """Has the state of step 5, under the name of another step."""

  def __init__(self, step):
    self._step = step

  def latest_step(self):
    return self._step

  def restore(self, abstract, step=None):
    state = types.SimpleNamespace(step=5)
    return checkpoints.Restored(state=state, input_state=None, step=self._step)


@pytest.mark.parametrize('step', [5, 8])
def test_a_checkpoint_with_the_name_of_another_step(
  tmp_path, caplog, monkeypatch, step
):
  monkeypatch.setattr(initial_state, 'restore_target', lambda partitioner: None)
  train = types.SimpleNamespace(
    num_train_steps=9, save_frozen_variables_once=False
  )
  checkpointer = training_checkpointer.TrainingCheckpointer(
    types.SimpleNamespace(
      checkpoints=RenamedFolder(step), job_log_dir=str(tmp_path)
    )
  )
  state, *_ = checkpointer.get_model_states(
    types.SimpleNamespace(
      task=types.SimpleNamespace(train=train), num_params=1
    ),
    None,
    None,
  )
  assert state.step == 5
  warned = f'of step {step} in {tmp_path} has the state of step 5'
  assert (warned in caplog.text) == (step == 8)
