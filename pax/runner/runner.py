# SPDX-License-Identifier: Apache-2.0
"""Runs a job from its options to its exit code."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
import time
from collections.abc import Iterator

import jax
from absl import logging

from pax import base_experiment, exit_codes, garbage_collection, stop_signals
from pax.checkpoints import read_deadline
from pax.files import storage
from pax.programs.jobs import JobCallbacks, Outcome
from pax.programs.stopping import watchdog as watchdog_lib
from pax.programs.stopping.preemption import PreemptionHandler
from pax.programs.stopping.stop_request import StopRequest
from pax.runner import (
  build_eval,
  build_train,
  common_flags,
  distributed,
  emergency,
  job_dir,
  job_log,
  job_setup,
  peer_monitor,
  run_record,
)
from pax.runner.options import RunOptions

# Errors of collectives and of the coordination service, as Python exceptions.
_STATUS = re.compile(
  r'\b(ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION|INTERNAL|'
  r'UNAVAILABLE|UNKNOWN): '
)


def run(
  options: RunOptions,
  experiment: base_experiment.BaseExperiment | None = None,
  callbacks: JobCallbacks | None = None,
) -> int:
  """Runs the job of the options; returns one of `exit_codes`.

  Args:
    options: the flags.
    experiment: used in place of the one that the flags name.
    callbacks: functions of the caller; None is none.

  Raises:
    ValueError: the flags, the configuration or the machine do not allow it.
  """
  began = time.time()
  # Missing flags are reported before devices are initialized.
  job_log_dir = options.job_dir
  job_log.log_to_console()
  with _peer_loss_first(), _hang_ends_process(options):
    distributed.initialize(options)
    common_flags.check(options)
    return _run_in_job_dir(options, job_log_dir, experiment, callbacks, began)


@contextlib.contextmanager
def _peer_loss_first() -> Iterator[None]:
  """Reports the loss of a peer instead of the errors that it causes."""
  try:
    yield
  except Exception as e:
    if isinstance(e, jax.errors.JaxRuntimeError) or _STATUS.search(str(e)):
      peer_monitor.await_verdict()
    raise


def _hang_ends_process(
  options: RunOptions,
) -> contextlib.AbstractContextManager[None]:
  """Returns the context in which a restore that hangs ends the process."""
  return read_deadline.enforced(
    options.async_timeout_secs,
    lambda text: stop_signals.end_process(exit_codes.ERROR, f'error: {text}'),
  )


def _run_in_job_dir(
  options: RunOptions,
  job_log_dir: str,
  experiment: base_experiment.BaseExperiment | None,
  callbacks: JobCallbacks | None,
  began: float,
) -> int:
  process = jax.process_index()
  if options.emergency_dir:
    emergency.check_emergency_dir(options.emergency_dir, job_log_dir)
  with job_dir.open_job_dir(
    job_log_dir, process, options.mode, options.job_dir_wait_secs
  ) as directory:
    saves_checkpoints = options.mode in job_dir.SAVING_MODES
    if saves_checkpoints and options.enable_checkpoint_saving:
      directory.check_shared()
    if storage.is_url(job_log_dir):
      # The files of the job are those of the working copy.
      options = dataclasses.replace(options, job_log_dir=str(directory.path))
    with _preemption_handler(options) as preemption:
      spec = job_setup.resolve(options, experiment, callbacks)
      run_record.append(
        options.job_dir, type(spec.experiment), options.mode, sys.argv
      )
      outcome = _run(options, spec, directory, preemption, began)
      code = _exit_code(outcome, preemption)
      preemption.mark_ended(code)
  return code


def _exit_code(outcome: Outcome, preemption: PreemptionHandler) -> int:
  if outcome is Outcome.PREEMPTED:
    return preemption.exit_code
  if outcome is Outcome.DIVERGED:
    return exit_codes.DIVERGED
  return exit_codes.DONE


def _run(
  options: RunOptions,
  spec: job_setup.JobSpec,
  directory: job_dir.JobDir,
  preemption: PreemptionHandler,
  began: float,
) -> Outcome:
  if options.mode != 'train':
    garbage_collection.resume()
  if options.mode == 'infer':
    return build_eval.build_infer(options, spec, preemption).run()
  if options.mode == 'quantize':
    return build_eval.build_quantize(options, spec, directory, preemption).run()
  if options.mode != 'train':
    return build_eval.build_eval(options, spec, directory, preemption).run()
  outcome = build_train.run(options, spec, directory, preemption, began)
  if outcome is Outcome.OUT_OF_DATA:
    logging.warning('The training data ended before the last step')
  return outcome


def _preemption_handler(options: RunOptions) -> PreemptionHandler:
  log_file = job_log.log_file(
    options.job_dir, jax.process_index(), options.mode
  )
  request = StopRequest()
  watchdog = watchdog_lib.create_watchdog(
    options.hang_timeout_secs, str(log_file), request, jax.process_count()
  )
  is_training = options.mode == 'train'
  return PreemptionHandler(
    watchdog,
    request=request,
    is_training=is_training,
    exits_after_ondemand_save=(
      options.exit_after_ondemand_checkpoint or not is_training
    ),
  )
