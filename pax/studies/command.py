# SPDX-License-Identifier: Apache-2.0
"""`--study=local`: runs a study from its options to its exit code."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

from absl import logging

from pax import exit_codes, experiment_registry, stop_signals
from pax.files import trusted_files
from pax.runner import (
  command_line,
  job_dir,
  job_lock,
  job_log,
  overrides,
  parent_death,
)
from pax.runner.options import RunOptions, UsageError
from pax.studies import report, trial_metrics
from pax.studies import study as study_lib
from pax.studies.search import Search
from pax.tuning import interfaces, optuna_search, optuna_study, space
from pax.tuning.trial import Trial
from praxis import pax_fiddle

# A trial of a study that was killed may still save.
_SAVING_SECS = 120.0


def run(options: RunOptions) -> int:
  """Runs the remaining trials and writes a report; returns the exit code.

  Raises:
    ValueError: the options or the experiment are not valid, or a trial fails.
  """
  name, directory = _check(options)
  changes = overrides.parse(options.set)
  experiment = overrides.set_constants(
    experiment_registry.get_experiment(name), changes
  )
  search_space = space.of(experiment)
  if not search_space.decisions:
    raise UsageError(
      f'{experiment.__name__} has no search point; write automl.oneof([...]) in'
      ' place of a constant, or leave out --study'
    )
  job_log.log_to_console()
  experiment_config = experiment()
  # Never closed: trials end when this process does.
  parent_pipe = parent_death.ParentPipe()
  with job_dir.open_job_dir(directory, 0):
    _check_journal(directory, options)
    search = Search.of(
      _with_optuna(experiment_config.search(), options),
      options.metrics_from,
      tuple(experiment_config.sub_experiments()),
      directory,
    )
    study = study_lib.Study(
      directory,
      search_space,
      search,
      study_lib.Limits(
        num_trials=options.num_trials, parallel=options.parallel_trials
      ),
      lambda trial, part: _start(options, directory, trial, part, parent_pipe),
    )
    with stop_signals.handling(lambda number, _: _stop(study, number)):
      study.run()
    report.write(directory, study.trials, search_space, search)
  return exit_codes.PREEMPTED if study.stopped else exit_codes.DONE


def trial_words(
  options: RunOptions, directory: str, trial: Trial, part: str
) -> list[str]:
  """Returns the flags of a run of a trial.

  Args:
    options: those of the study.
    directory: of the study.
    trial: its settings.
    part: the sub-experiment to run.
  """
  flags = dataclasses.replace(
    options,
    study=None,
    num_trials=None,
    sampler=None,
    pruner=None,
    metrics_from=RunOptions.metrics_from,
    parallel_trials=RunOptions.parallel_trials,
    job_log_dir=study_lib.job_log_dir(directory, trial.id, part),
    sub_experiment=part or None,
    set=(*options.set, *(f'{n}={text}' for n, text in trial.settings.items())),
    # The study reads the type of an error from its traceback.
    traceback=True,
    **trial_metrics.OPTIONS[options.metrics_from],
  )
  return command_line.words_of(flags)


def _check_journal(directory: str, options: RunOptions) -> None:
  """Checks that no other user can write what Optuna unpickles.

  Raises:
    UntrustedFileError: another user can.
  """
  journal = pathlib.Path(directory, optuna_study.JOURNAL_FILE)
  if journal.exists():
    trusted_files.read_bytes(
      journal, trust_foreign_files=options.trust_foreign_files
    )


def _with_optuna(
  hparams: interfaces.SearchHParams, options: RunOptions
) -> interfaces.SearchHParams:
  """The search with the sampler and the pruner of the flags."""
  if options.sampler:
    hparams.search_algorithm = pax_fiddle.Config(
      optuna_search.OptunaSearch, sampler=options.sampler
    )
  if options.pruner:
    hparams.early_stopping = pax_fiddle.Config(
      optuna_search.OptunaPruner, pruner=options.pruner
    )
  return hparams


def _start(
  options: RunOptions,
  directory: str,
  trial: Trial,
  part: str,
  parent_pipe: parent_death.ParentPipe,
) -> subprocess.Popen[bytes]:
  words = trial_words(options, directory, trial, part)
  logging.info('Trial %d: pax %s', trial.id, ' '.join(words))
  path = {'PYTHONPATH': os.pathsep.join(sys.path)}
  log = study_lib.log_file(directory, trial.id, part)
  run_directory = study_lib.job_log_dir(directory, trial.id, part)
  job_lock.wait_until_free(pathlib.Path(run_directory), _SAVING_SECS)
  with open(log, 'wb') as f:
    return subprocess.Popen(
      [sys.executable, '-m', 'pax.main', *words],
      stdin=subprocess.DEVNULL,
      stdout=f,
      stderr=subprocess.STDOUT,
      env={**os.environ, **path, **parent_pipe.environment},
      pass_fds=parent_pipe.pass_fds,
      # Ctrl-C reaches the study only, which stops its trials.
      start_new_session=True,
    )


def _stop(study: study_lib.Study, number: int) -> None:
  """Stops the study; runs in the thread of the signals."""
  study.stop()
  name = stop_signals.name_of(number)
  stop_signals.print_message(f'{name}: stopping the trials, which save')


def _check(options: RunOptions) -> tuple[str, str]:
  """Returns --exp and --job_log_dir.

  Raises:
    UsageError: the options are not valid for a study.
  """
  checks: Sequence[tuple[bool, str]] = (
    (
      not (options.study or '').startswith('local'),
      f'--study={options.study} needs a search service, which does not exist; a'
      ' name that begins with local runs the trials in this process',
    ),
    (
      options.mode != 'train',
      f'--study needs --mode=train, got --mode={options.mode}',
    ),
    (
      bool(options.sub_experiment),
      '--study runs all sub-experiments; leave out --sub_experiment',
    ),
    (
      not options.enable_summary_writer,
      '--study reads the metrics of its trials; leave out'
      ' --noenable_summary_writer',
    ),
    (options.multiprocess_gpu, '--study runs its trials on one host'),
  )
  for is_wrong, message in checks:
    if is_wrong:
      raise UsageError(message)
  if not options.job_log_dir:
    raise UsageError('--study needs a --job_log_dir for its trials')
  if not options.exp:
    raise UsageError('--study needs --exp, whose constants it searches')
  return options.exp, options.job_log_dir
