# SPDX-License-Identifier: Apache-2.0
"""From the options of a study to its exit code."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from absl import logging

from pax import compat, experiment_registry
from pax.runner import command_line, job_dir, overrides
from pax.runner.options import RunOptions, UsageError
from pax.runner.studies import measured, report, study
from pax.tuning import space

_EXIT_DONE = 0
_EXIT_PREEMPTED = 75


def run(options: RunOptions) -> int:
  """Runs the trials that are left and writes what came out; the exit code.

  Raises:
    ValueError: the options, the experiment or a trial do not allow it.
  """
  _check(options)
  compat.install()
  settings = overrides.parse(options.set)
  found = experiment_registry.get_experiment(options.exp)
  experiment = overrides.set_constants(found, settings)
  searched = space.of(experiment)
  if not searched.decisions:
    raise UsageError(
      f'{experiment.__name__} has no search point, so there is nothing to'
      ' study; write automl.oneof([...]) where a constant is, or leave out'
      ' --study'
    )
  job_dir.log_to_console()
  search = study.Search.of(experiment().search(), options.metrics_from)
  with job_dir.open_job_dir(options.job_log_dir, 0):
    ran = study.Study(
      options.job_log_dir,
      searched,
      search,
      study.Limits(
        num_trials=options.num_trials, parallel=options.parallel_trials
      ),
      lambda trial: _start(options, trial.id, trial.settings),
    )
    handlers = {
      number: signal.signal(number, lambda *_: ran.stop())
      for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
      ran.run()
    finally:
      for number, handler in handlers.items():
        signal.signal(number, handler)
    report.write(options.job_log_dir, ran.trials, searched, search)
  return _EXIT_PREEMPTED if ran.stopped else _EXIT_DONE


def trial_words(
  options: RunOptions, trial_id: int, settings: space.Settings
) -> list[str]:
  """The command line of a trial, without the program."""
  flags = dataclasses.replace(
    options,
    **dict.fromkeys(('study', 'num_trials')),
    metrics_from=RunOptions.metrics_from,
    parallel_trials=RunOptions.parallel_trials,
    job_log_dir=os.path.join(options.job_log_dir, str(trial_id)),
    set=(*options.set, *(f'{n}={text}' for n, text in settings.items())),
    # Errors are told apart by their types.
    traceback=True,
    **measured.OPTIONS[options.metrics_from],
  )
  return command_line.words_of(flags)


def _start(
  options: RunOptions, trial_id: int, settings: space.Settings
) -> subprocess.Popen[bytes]:
  words = trial_words(options, trial_id, settings)
  logging.info('Trial %d: pax %s', trial_id, ' '.join(words))
  environment = os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)}
  log = study.log_file(options.job_log_dir, trial_id)
  with open(log, 'wb') as f:
    return subprocess.Popen(
      [sys.executable, '-m', 'pax.main', *words],
      stdin=subprocess.DEVNULL,
      stdout=f,
      stderr=subprocess.STDOUT,
      env=environment,
      # Ctrl-C is for the study, which tells its trials.
      start_new_session=True,
    )


def _check(options: RunOptions) -> None:
  """Refuses what is no study."""
  wrong: Sequence[tuple[bool, str]] = (
    (
      not options.study.startswith('local'),
      f'--study={options.study} wants a search service, and there is none; a'
      ' name that begins with local runs the trials here',
    ),
    (not options.job_log_dir, '--study wants a --job_log_dir for its trials'),
    (not options.exp, '--study wants --exp: it searches its constants'),
    (options.mode != 'train', f'--study trains, got --mode={options.mode}'),
    (options.multiprocess_gpu, '--study runs its trials on one host'),
    (
      options.metrics_from not in measured.OPTIONS,
      f'--metrics_from must be one of {", ".join(measured.OPTIONS)}, got'
      f' {options.metrics_from!r}',
    ),
    (
      options.parallel_trials < 1,
      f'--parallel_trials must be at least 1, got {options.parallel_trials}',
    ),
  )
  for is_wrong, message in wrong:
    if is_wrong:
      raise UsageError(message)
