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

from pax import experiment_registry
from pax.runner import command_line, job_dir, overrides, parent_death
from pax.runner.options import RunOptions, UsageError
from pax.studies import report, study, trial_metrics
from pax.studies.search import Search
from pax.tuning import space
from pax.tuning.trial import Trial

_EXIT_DONE = 0
_EXIT_PREEMPTED = 75
_SAVING_SECS = 120.0


def run(options: RunOptions) -> int:
  """Runs the trials that are left and writes what came out; the exit code.

  Raises:
    ValueError: the options, the experiment or a trial do not allow it.
  """
  _check(options)
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
  search = Search.of(
    experiment().search(),
    options.metrics_from,
    tuple(experiment.sub_experiments()),
  )
  # Never closed: trials end when this process does.
  line = parent_death.Lifeline()
  with job_dir.open_job_dir(options.job_log_dir, 0):
    ran = study.Study(
      options.job_log_dir,
      searched,
      search,
      study.Limits(
        num_trials=options.num_trials, parallel=options.parallel_trials
      ),
      lambda trial, part: _start(options, trial, part, line),
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


def trial_words(options: RunOptions, trial: Trial, part: str) -> list[str]:
  """The command line of a run of a trial, without the program."""
  flags = dataclasses.replace(
    options,
    **dict.fromkeys(('study', 'num_trials')),
    metrics_from=RunOptions.metrics_from,
    parallel_trials=RunOptions.parallel_trials,
    job_log_dir=study.job_log_dir(options.job_log_dir, trial.id, part),
    sub_experiment=part or None,
    set=(*options.set, *(f'{n}={text}' for n, text in trial.settings.items())),
    # Errors are told apart by their types.
    traceback=True,
    **trial_metrics.OPTIONS[options.metrics_from],
  )
  return command_line.words_of(flags)


def _start(
  options: RunOptions, trial: Trial, part: str, line: parent_death.Lifeline
) -> subprocess.Popen[bytes]:
  words = trial_words(options, trial, part)
  logging.info('Trial %d: pax %s', trial.id, ' '.join(words))
  path = {'PYTHONPATH': os.pathsep.join(sys.path)}
  log = study.log_file(options.job_log_dir, trial.id, part)
  # A trial of a study that was killed may still be saving.
  job_dir.wait_until_free(
    study.job_log_dir(options.job_log_dir, trial.id, part), _SAVING_SECS
  )
  with open(log, 'wb') as f:
    return subprocess.Popen(
      [sys.executable, '-m', 'pax.main', *words],
      stdin=subprocess.DEVNULL,
      stdout=f,
      stderr=subprocess.STDOUT,
      env=os.environ | path | line.environment,
      pass_fds=line.pass_fds,
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
    (
      bool(options.sub_experiment),
      '--study runs all sub-experiments; leave out --sub_experiment',
    ),
    (options.multiprocess_gpu, '--study runs its trials on one host'),
    (
      options.metrics_from not in trial_metrics.OPTIONS,
      f'--metrics_from must be one of {", ".join(trial_metrics.OPTIONS)}, got'
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
