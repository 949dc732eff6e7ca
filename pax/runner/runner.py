# SPDX-License-Identifier: Apache-2.0
"""One run from its options to its exit code."""

from __future__ import annotations

import jax
from absl import logging

from pax import compat
from pax.programs import interrupts as interrupts_lib
from pax.programs import train as train_program
from pax.programs.run import Outcome
from pax.runner import build, distributed, job_dir
from pax.runner.options import RunOptions, UsageError

EXIT_DONE = 0
EXIT_ERROR = 1
# EX_TEMPFAIL: try again, and the run goes on.
EXIT_PREEMPTED = 75


def run(options: RunOptions) -> int:
  """Trains as the options say; returns the exit code.

  Raises:
    ValueError: the options, the configuration or the machine do not allow it.
  """
  _check(options)
  job_dir.log_to_console()
  distributed.initialize(options)
  compat.install()
  with job_dir.open_job_dir(options.job_log_dir, jax.process_index()):
    with interrupts_lib.Interrupts() as interrupts:
      planned = build.plan(options)
      built = build.build(options, planned, interrupts)
      with built:
        outcome = train_program.train(built)
        if outcome is Outcome.OUT_OF_DATA:
          logging.warning('The training data ended before the last step')
  return EXIT_PREEMPTED if outcome is Outcome.PREEMPTED else EXIT_DONE


def _check(options: RunOptions) -> None:
  """Refuses what needs no device to be refused."""
  if not options.job_log_dir:
    raise UsageError(
      'where to? e.g. --job_log_dir=/tmp/pax/tiny; a run that is started again'
      ' with the same directory goes on'
    )
  if options.mode != 'train':
    raise UsageError(f'--mode={options.mode!r} does not exist; use train')
