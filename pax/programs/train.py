# SPDX-License-Identifier: Apache-2.0
"""The training loop."""

from __future__ import annotations

import jax

from pax.inputs import prefetch
from pax.programs.reports import Reports
from pax.programs.run import Outcome, Run


def train(run: Run) -> Outcome:
  """Trains from the run's state to its last step, or until a signal.

  The state that enters a step is saved, with the state of the input before the
  batch of that step: whoever restores it takes the same batch. All randomness
  comes from one key and the number of the step.
  """
  settings = run.task.train
  last_step = int(settings.num_train_steps)
  key = jax.random.key(settings.random_seed)
  state, step, outcome = run.state, run.step, Outcome.DONE
  batches = prefetch.Prefetcher(
    run.train_input, transform=run.partitioner.put_batch
  )
  reports = Reports(run)
  with batches:
    # The order matters: save, stop, batch, step, report.
    while True:
      run.checkpointer.save(step, state, prefetch.state_of(batches))
      if step >= last_step:
        break
      if run.interrupts.requested(step):
        outcome = Outcome.PREEMPTED
        break
      if batches.peek() is None:
        outcome = Outcome.OUT_OF_DATA
        break
      state, output = run.train_step(state, batches.get_next(), key)
      reports.add(step, output)
      step += 1
      reports.evaluate_if_due(step, state)
    reports.drain()
    run.checkpointer.save(step, state, prefetch.state_of(batches), force=True)
    if outcome is not Outcome.PREEMPTED:
      reports.conclude(step, state)
    run.checkpointer.wait()
  return outcome
