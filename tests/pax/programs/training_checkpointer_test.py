# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The checkpointer of loops that executors of users contain."""

from __future__ import annotations

import types

from pax import checkpoints, summaries
from pax.programs import training_checkpointer


class Computing:
  """A state that the devices compute, in seven seconds from the first wait."""

  def __init__(self, clock):
    self._clock, self._is_ready = clock, False

  def block_until_ready(self):
    if not self._is_ready:
      self._clock.now += 7
    self._is_ready = True
    return self


class TwoSeconds(checkpoints.NoopCheckpointer):
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
