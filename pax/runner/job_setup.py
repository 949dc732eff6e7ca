# SPDX-License-Identifier: Apache-2.0
"""Parts of all jobs: resolved configuration, partitioner, programs, outputs."""

from __future__ import annotations

import copy
import dataclasses
import os
from typing import Any

import jax
from absl import logging

from pax import (
  base_experiment,
  partitioning,
  summaries,
  tasks_lib,
)
from pax.inputs.seqio import tasks as seqio_tasks
from pax.programs import decode as decode_program
from pax.programs import eval as eval_program
from pax.programs import program
from pax.programs.early_stopping import EarlyStoppingFn
from pax.programs.jobs import JobCallbacks
from pax.runner import experiments, overrides, run_config
from pax.runner.options import RunOptions
from praxis import base_input, pax_fiddle

Config = pax_fiddle.Config
Task = tasks_lib.SingleTask


@dataclasses.dataclass(frozen=True)
class JobSpec:
  """An experiment and its configuration, with the options applied."""

  experiment: base_experiment.BaseExperiment
  tree: Config[run_config.RunConfig]
  # Whether training evaluates the test inputs.
  eval_on_test: bool
  # Functions of the caller.
  callbacks: JobCallbacks = JobCallbacks()

  @property
  def name(self) -> str:
    """The class of the experiment, for messages."""
    return type(self.experiment).__name__


def resolve(
  options: RunOptions,
  experiment: base_experiment.BaseExperiment | None = None,
  callbacks: JobCallbacks | None = None,
) -> JobSpec:
  """Returns the experiment and its configuration.

  Args:
    options: the flags; --set is applied here and nowhere else.
    experiment: used in place of the one that the flags name.
    callbacks: functions of the caller; None is none.

  Raises:
    UsageError: a flag is missing or has no meaning.
    ValueError: there is no such experiment, constant or field.
  """
  seqio_tasks.set_tfds_data_dir(options.tfds_data_dir)
  changes = overrides.parse(options.set)
  if experiment is None:
    experiment = experiments.find(
      options.exp,
      changes,
      experiments.fiddle_commands_of(options),
      options.sub_experiment,
      trust_foreign_files=options.trust_foreign_files,
    )
  experiments.validate(experiment)
  tree = run_config.from_experiment(experiment, changes)
  if options.profile_steps:
    _set_profiled_steps(tree.task.train, options.profile_steps)
  inputs = [tree.train_input, *tree.eval_inputs, *tree.decode_inputs]
  for config in filter(None, inputs):
    _set_infeed_host(config)
  eval_on_test = options.eval_on_test
  if eval_on_test is None:
    eval_on_test = getattr(experiment, 'EVAL_ON_TEST', None)
    if options.mode == 'train' and eval_on_test is None:
      _report_unread_data(experiment)
  return JobSpec(
    experiment, tree, bool(eval_on_test), callbacks or JobCallbacks()
  )


def _report_unread_data(experiment: base_experiment.BaseExperiment) -> None:
  if data := getattr(experiment, 'EVAL_DATA', None):
    logging.warning(
      'EVAL_DATA=%s is not evaluated during training; pass --eval_on_test, or'
      ' evaluate the checkpoints by --mode=eval (--noeval_on_test: no warning)',
      data,
    )


def _set_profiled_steps(train: Config[Any], profile_steps: str) -> None:
  first, end = map(int, profile_steps.split(':'))
  num_steps = int(train.num_train_steps)
  if first >= num_steps:
    raise ValueError(
      f'--profile_steps={profile_steps} has no step of this job: steps count'
      ' from 0, and task.train.num_train_steps is'
      f' {num_steps}; FIRST must be below it'
    )
  train.profiler_capture_step, train.profiler_num_steps = first, end - first
  train.profiler_min_duration_sec = 0.0


def early_stopping_fn(spec: JobSpec, task: Task) -> EarlyStoppingFn | None:
  """Returns the early stopping function of the caller or of the task.

  Raises:
    ValueError: both have one.
  """
  own, of_task = spec.callbacks.early_stopping_fn, task.early_stopping_fn
  if own is not None and of_task is not None:
    raise ValueError(
      'early_stopping_fn is set in both the task and the argument of the job;'
      ' leave one of them None'
    )
  return of_task if own is None else own


def train_input_config(spec: JobSpec) -> Config[base_input.BaseInput]:
  """Returns the config of the training input.

  Raises:
    ValueError: the experiment has none, or several.
  """
  if spec.tree.train_input is None:
    # Raises if the experiment has none or several.
    spec.experiment.training_dataset()
    raise ValueError('train_input is None; training needs it, leave out --set')
  return spec.tree.train_input


def declared_spec(experiment: base_experiment.BaseExperiment) -> Any | None:
  """Returns the batch spec of the experiment's own provider, if it has one.

  The default provider reads the training input.
  """
  default = base_experiment.BaseExperiment.get_input_specs_provider_params
  if type(experiment).get_input_specs_provider_params is default:
    return None
  provider = experiment.get_input_specs_provider_params()
  if provider.cls is base_input.DatasetInputSpecsProvider:
    return None
  return provider.Instantiate().get_input_specs()


def create_partitioner(
  spec: JobSpec, input_spec: Any
) -> partitioning.Partitioner:
  """Returns the experiment's own partitioner, or the default one, set up."""
  task = spec.tree.task.Instantiate()
  partitioner = spec.experiment.partitioner()
  if partitioner is None:
    partitioner = partitioning.create_partitioner(task)
  partitioner.setup(
    task,
    jax.random.key(task.train.random_seed),
    partitioner.init_spec(input_spec),
  )
  return partitioner


def create_eval_programs(
  options: RunOptions, spec: JobSpec
) -> tuple[
  list[eval_program.BaseEvalProgram],
  list[decode_program.SingleTaskDecodeProgram],
]:
  """Returns the eval and decode programs of the job, not set up."""
  experiment = _with_overridden_datasets(spec)
  evals, decodes = [], []
  if _evaluates(options, spec):
    evals = experiment.eval_programs()
  if options.decode_during_train or options.mode in ('decode', 'decode_once'):
    decodes = experiment.decode_programs()
    if options.mode == 'train':
      _warn_of_no_decoding(spec, has_programs=bool(decodes))
  return evals, decodes


def _warn_of_no_decoding(spec: JobSpec, *, has_programs: bool) -> None:
  """Warns of a `--decode_during_train` that decodes nothing."""
  if not has_programs:
    reason = f'decode_datasets() of {spec.name} returns none'
  elif not spec.tree.task.train.decode_interval_steps:
    reason = 'task.train.decode_interval_steps is not set'
  else:
    return
  logging.warning('--decode_during_train decodes nothing: %s', reason)


def create_writer(options: RunOptions, spec: JobSpec) -> summaries.Writer:
  """Returns the summary writer; only the first process writes."""
  is_enabled = jax.process_index() == 0 and options.enable_summary_writer
  writer_options = summaries.WriterOptions(
    mode=options.mode,
    asynchronous=spec.tree.task.train.async_summary_writing,
    only_aggregates=options.pax_only_aggregate_summaries,
    wandb_project=options.wandb_project,
    mlflow_experiment=options.mlflow_experiment,
  )
  return summaries.create_writer(options.job_dir, is_enabled, writer_options)


def create_goodput_recorder(
  options: RunOptions, began: float | None
) -> summaries.goodput.Recorder:
  """Returns the recorder of wall time; only the first process writes.

  `began` is the start of the process in seconds since 1970; None is now.
  """
  path = None
  if jax.process_index() == 0:
    file = summaries.goodput.GOODPUT_FILE
    path = os.path.join(options.job_dir, file)
  return summaries.goodput.Recorder(path, began=began)


def create_progress(task: Task) -> summaries.Progress:
  """Returns the progress line; only the first process prints it."""
  is_first = jax.process_index() == 0
  return summaries.Progress(
    int(task.train.num_train_steps),
    None if is_first else open(os.devnull, 'w', encoding='utf-8'),
  )


def _with_overridden_datasets(
  spec: JobSpec,
) -> base_experiment.BaseExperiment:
  """Returns the experiment; its eval and decode datasets are those of --set."""
  experiment = copy.copy(spec.experiment)
  vars(experiment).update(
    eval_datasets=lambda: spec.tree.eval_inputs,
    decode_datasets=lambda: spec.tree.decode_inputs,
  )
  return experiment


def _evaluates(options: RunOptions, spec: JobSpec) -> bool:
  if options.mode == 'train':
    return spec.eval_on_test
  return options.mode == 'eval' or options.eval_during_decode


def _set_infeed_host(config: Config[base_input.BaseInput]) -> None:
  """Sets which share of the data an input reads, unless that is set."""
  with_host = program.with_infeed_host(config)
  config.num_infeed_hosts = with_host.num_infeed_hosts
  config.infeed_host_index = with_host.infeed_host_index
