# SPDX-License-Identifier: Apache-2.0
"""Functions of paxml's binary: experiments and runs from flags of absl.

A script that has its own `app.run` imports `paxml.main`, which defines the
flags, and calls `create_experiment_config` and `run`.
"""

from __future__ import annotations

import os
import pathlib
import random
import sys
import time
from typing import Any

from absl import flags

from pax import base_experiment, exit_codes, experiment_registry, jobs
from pax.paxml_api import tune
from pax.programs.early_stopping import EarlyStoppingFn
from pax.runner import command_line, experiments, unsupported_flags
from pax.runner.options import RunOptions, UsageError
from pax.tuning import space

FLAGS = flags.FLAGS

# Flags of paxml that are fields of RunOptions. Others of RunOptions, such as
# --set, have short names that scripts define for themselves.
_SHARED_FLAGS = frozenset(
  (
    'async_timeout_secs',
    'decode_during_train',
    'decode_output_pickle',
    'enable_checkpoint_saving',
    'enable_summary_writer',
    'eval_during_decode',
    'eval_on_test',
    'exp',
    'fdl',
    'fdl_config',
    'fdl_config_file',
    'fdl_set',
    'fdl_tags_set',
    'fiddler',
    'globally_use_hardware_rng',
    'host_idx',
    'jax_fully_async_checkpoint',
    'jax_profiler_port',
    'jax_traceback_filtering_option',
    'job_log_dir',
    'metrics_from',
    'mode',
    'multiprocess_gpu',
    'num_hosts',
    'num_trials',
    'pax_only_aggregate_summaries',
    'pmap_use_tensorstore',
    'restore_checkpoint_dir',
    'restore_checkpoint_step',
    'server_addr',
    'startup_random_jitter_max_secs',
    'study',
    'tensorstore_use_ocdbt',
    'tfds_data_dir',
  )
)
# Flags of paxml that must keep their defaults, by type.
_UNSUPPORTED_BOOLEANS = (
  'enable_auto_sharding',
  'maybe_use_persistence_checkpointing',
)
_UNSUPPORTED_STRINGS = (
  'pythia_port',
  'tuner_group',
)


def define_flags(flag_values: flags.FlagValues = FLAGS) -> None:
  """Defines the flags of paxml's binary, unless they are defined."""
  command_line.define_flags(RunOptions, _SHARED_FLAGS, flag_values)
  for name, (default, text) in unsupported_flags.IGNORED.items():
    if name not in flag_values:
      flags.DEFINE_bool(name, default, text, flag_values=flag_values)
  for name in (*_UNSUPPORTED_BOOLEANS, *_UNSUPPORTED_STRINGS):
    if name not in flag_values:
      text = f'Not supported: {unsupported_flags.FLAGS[name]}'
      if name in _UNSUPPORTED_BOOLEANS:
        flags.DEFINE_bool(name, False, text, flag_values=flag_values)
      else:
        flags.DEFINE_string(name, None, text, flag_values=flag_values)


def options_from_flags(**changes: Any) -> RunOptions:
  """Returns the options of a run with the values of the flags.

  Args:
    **changes: Values of fields in place of those of the flags.

  Raises:
    UsageError: A flag has a value that is not supported.
  """
  for name in (*_UNSUPPORTED_BOOLEANS, *_UNSUPPORTED_STRINGS):
    if name in FLAGS and FLAGS[name].value:
      reason = unsupported_flags.FLAGS[name]
      raise UsageError(f'--{name} is not supported: {reason}')
  return command_line.from_flags(RunOptions, FLAGS, **changes)


def get_experiment(
  experiment_name: str,
) -> type[base_experiment.BaseExperiment]:
  """Returns the class of an experiment; imports its module if needed.

  Raises:
    ValueError: There is no such experiment.
  """
  return experiment_registry.get_experiment(experiment_name)


def create_experiment_config() -> base_experiment.BaseExperiment:
  """Returns the experiment of the flags `--exp` or `--fdl`, validated.

  Raises:
    UsageError: No flag names an experiment.
    ValueError: There is no such experiment, or its constants are inconsistent.
  """
  options = options_from_flags()
  if options.exp and options.study:
    # Its search points have no values yet.
    return get_experiment(options.exp)()
  experiment = experiments.find(
    options.exp, (), experiments.fiddle_commands_of(options)
  )
  experiments.validate(experiment)
  return experiment


def wait_with_random_jitter(min_secs: int, max_secs: int) -> None:
  """Sleeps for a random number of seconds, to spread the load on storage."""
  time.sleep(random.randint(min_secs, max_secs))


def run_experiment(
  experiment_config: base_experiment.BaseExperiment,
  work_unit: Any,
  job_log_dir: str | os.PathLike[str],
  early_stopping_fn: EarlyStoppingFn | None = None,
  enable_checkpoint_saving: bool = True,
) -> None:
  """Runs an experiment in the mode of `--mode`.

  Args:
    experiment_config: The experiment.
    work_unit: Receives the status of the task by `set_task_status`; None shows
      none.
    job_log_dir: The directory of all outputs.
    early_stopping_fn: Decides whether the job ends early; None is that of the
      task.
    enable_checkpoint_saving: Whether to save checkpoints.

  Raises:
    ValueError: The flags or the experiment do not allow the run.
    FloatingPointError: Training diverged; a search skips such a trial.
    SystemExit: The job was preempted or failed; the code is one of
      `pax.exit_codes`.
  """
  options = options_from_flags(
    job_log_dir=os.fspath(job_log_dir),
    enable_checkpoint_saving=enable_checkpoint_saving,
  )
  if work_unit is not None:
    name = options.exp or type(experiment_config).__name__
    work_unit.set_task_status(f'{options.mode} {name} at {job_log_dir}')
  code = jobs.run_with_options(
    options, experiment_config, early_stopping_fn=early_stopping_fn
  )
  if code == exit_codes.DIVERGED:
    raise FloatingPointError(f'The run in {job_log_dir} diverged')
  if code != exit_codes.DONE:
    sys.exit(code)


def run(
  experiment_config: base_experiment.BaseExperiment,
  enable_checkpoint_saving: bool = True,
  startup_random_jitter_max_secs: int = 60,
) -> None:
  """Runs an experiment by the flags.

  An experiment with search points is a search: `--study=local` runs each trial
  in a process of its own, otherwise `tuning_lib.tune` runs them in this one.

  Args:
    experiment_config: The experiment.
    enable_checkpoint_saving: Whether to save checkpoints; trials always do.
    startup_random_jitter_max_secs: Longest wait at the start of a job of more
      than 128 processes.

  Raises:
    ValueError: The flags or the experiment do not allow the run.
    SystemExit: The job was preempted, diverged or failed; the code is one of
      `pax.exit_codes`.
  """
  options = options_from_flags(
    enable_checkpoint_saving=enable_checkpoint_saving,
    startup_random_jitter_max_secs=startup_random_jitter_max_secs,
  )
  code = exit_codes.DONE
  if not space.search_points(type(experiment_config)):
    code = jobs.run_with_options(options, experiment_config)
  elif options.study == 'local':
    from pax import studies

    code = studies.run(options)
  elif not options.job_log_dir:
    raise UsageError('a search needs a --job_log_dir for its trials')
  else:
    tune.tune(
      run_experiment,
      experiment_config,
      None,
      pathlib.Path(options.job_log_dir),
      options.study,
      is_metric_reporting_role=options.metrics_from == options.mode,
      max_num_trials=options.num_trials,
      running_mode=options.mode,
    )
  if code != exit_codes.DONE:
    sys.exit(code)
