# SPDX-License-Identifier: Apache-2.0
"""One run from its options to its exit code."""

from __future__ import annotations

import time

import jax
from absl import logging

from pax import base_experiment, executors
from pax.programs import watchdog as watchdog_lib
from pax.programs.jobs import Outcome, TrainJob
from pax.programs.preemption import PreemptionHandler
from pax.runner import (
  build_eval,
  build_train,
  distributed,
  job_dir,
  job_setup,
  unsupported_flags,
)
from pax.runner.options import RunOptions, UsageError

EXIT_DONE = 0
EXIT_ERROR = 1
# EX_TEMPFAIL: try again, and the run goes on.
EXIT_PREEMPTED = 75
EXIT_HANG = watchdog_lib.EXIT_HANG

_MODES = ('train', 'eval', 'decode', 'decode_once', 'infer')
_DECODING = ('decode', 'decode_once')


def run(
  options: RunOptions,
  experiment: base_experiment.BaseExperiment | None = None,
) -> int:
  """Does what the options say; returns the exit code.

  Args:
    options: What to do, and where.
    experiment: Of what; None finds the one that the options name.

  Raises:
    ValueError: the options, the configuration or the machine do not allow it.
  """
  began = time.time()
  _check(options)
  job_dir.log_to_console()
  distributed.initialize(options)
  process = jax.process_index()
  with job_dir.open_job_dir(options.job_log_dir, process, options.mode):
    with _preemption_handler(options) as preemption:
      planned = job_setup.plan(options, experiment)
      outcome = _run(options, planned, preemption, began)
  return EXIT_PREEMPTED if outcome is Outcome.PREEMPTED else EXIT_DONE


def _run(
  options: RunOptions,
  planned: job_setup.Plan,
  preemption: PreemptionHandler,
  began: float,
) -> Outcome:
  if options.mode == 'infer':
    return build_eval.build_infer(options, planned, preemption).run()
  if options.mode != 'train':
    return build_eval.build_eval(options, planned, preemption).run()
  built = build_train.build(options, planned, preemption, began)
  with built:
    outcome = _train(built, planned)
    if outcome is Outcome.OUT_OF_DATA:
      logging.warning('The training data ended before the last step')
  return outcome


def _train(built: TrainJob, planned: job_setup.Plan) -> Outcome:
  """Trains by the experiment's own executor, or by the usual one."""
  executor = planned.experiment.executor() or executors.DefaultExecutor()
  executor.setup(built)
  outcome = executor.start()
  return outcome if isinstance(outcome, Outcome) else Outcome.DONE


def _preemption_handler(options: RunOptions) -> PreemptionHandler:
  log_file = job_dir.log_file(
    options.job_log_dir, jax.process_index(), options.mode
  )
  watchdog = watchdog_lib.create_watchdog(
    options.hang_timeout_secs, str(log_file)
  )
  verb = 'saving' if options.mode == 'train' else 'stopping'
  return PreemptionHandler(watchdog, verb)


def _check(options: RunOptions) -> None:
  """Refuses what needs no device to be refused."""
  if not options.job_log_dir:
    raise UsageError(
      'where to? e.g. --job_log_dir=/tmp/pax/tiny; a run that is started again'
      ' with the same directory goes on'
    )
  if reason := unsupported_flags.MODES.get(options.mode):
    raise UsageError(f'--mode={options.mode} is not here: {reason}')
  if options.mode not in _MODES:
    raise UsageError(
      f'--mode={options.mode!r} does not exist; use {", ".join(_MODES)}'
    )
  if options.aot_load and options.mode != 'train':
    raise UsageError(
      f'--aot_load is the step of --mode=train, got --mode={options.mode}'
    )
  restores = options.restore_checkpoint_dir or options.restore_checkpoint_step
  if restores and options.mode not in _DECODING:
    raise UsageError(
      '--restore_checkpoint_dir and --restore_checkpoint_step are for'
      f' --mode=decode and decode_once, got --mode={options.mode}; another'
      ' checkpoint to start from is --init_from'
    )
