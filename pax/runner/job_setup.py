# SPDX-License-Identifier: Apache-2.0
"""What training and all other jobs are made of: plan, devices, programs."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax

from pax import base_experiment, partitioning, summaries
from pax.checkpoints import init_from, transformations
from pax.programs import decode as decode_program
from pax.programs import eval as eval_program
from pax.programs import program
from pax.programs.eval_runner import EvalRunner
from pax.runner import experiments, overrides, run_config
from pax.runner.options import RunOptions
from praxis import base_input, pax_fiddle

Config = pax_fiddle.Config
Task = Any


@dataclasses.dataclass(frozen=True)
class Plan:
  """What to run, still as data."""

  experiment: base_experiment.BaseExperiment
  tree: Config[run_config.RunConfig]
  eval_on_test: bool


def plan(
  options: RunOptions,
  experiment: base_experiment.BaseExperiment | None = None,
) -> Plan:
  """Finds the experiment, unless it is given, and makes its configuration.

  Raises:
    UsageError: an option is missing or has no meaning.
    ValueError: no such experiment, constant or field.
  """
  settings = overrides.parse(options.set)
  if experiment is None:
    commands = experiments.commands_of(options)
    experiment = experiments.find(
      options.exp, settings, commands, options.sub_experiment
    )
  experiment.validate()
  tree = run_config.from_experiment(experiment, settings)
  inputs = [*tree.eval_inputs, *tree.decode_inputs]
  for config in [tree.train_input, *inputs] if tree.train_input else inputs:
    _set_infeed(config)
  wish = options.eval_on_test
  if wish is None:
    wish = getattr(experiment, 'EVAL_ON_TEST', False)
  return Plan(experiment, tree, wish)


def batch_spec(inp: base_input.BaseInput) -> Any:
  """Shape and dtype of every array in a batch of this host."""
  batch = inp.peek_padded()
  if batch is None:
    raise ValueError(f'the input {inp.name!r} has no batch')
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)


def declared_spec(experiment: base_experiment.BaseExperiment) -> Any | None:
  """What the experiment's own specs provider says; None if it has none.

  The provider that every experiment has asks the training input.
  """
  usual = base_experiment.BaseExperiment.get_input_specs_provider_params
  if type(experiment).get_input_specs_provider_params is usual:
    return None
  provider = experiment.get_input_specs_provider_params()
  if provider.cls is base_input.DatasetInputSpecsProvider:
    return None
  return provider.Instantiate().get_input_specs()


def check_spec(spec: Any, declared: Any) -> None:
  """Raises ValueError unless a batch is as the specs provider says."""

  def shown(tree: Any) -> dict[str, str]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
      jax.tree_util.keystr(path, simple=True, separator='.'): (
        f'{leaf.dtype}{list(leaf.shape)}'
      )
      for path, leaf in leaves
    }

  found, wanted = shown(spec), shown(declared)
  if found != wanted:
    raise ValueError(
      f'the first training batch must be {wanted}, as the input specs provider'
      f' says, got {found}; correct the provider, or set'
      ' task.train.enforce_input_specs=False'
    )


def create_partitioner(planned: Plan, spec: Any) -> partitioning.Partitioner:
  """The experiment's own partitioner, or the usual one."""
  create = planned.experiment.partitioner() or partitioning.create_partitioner
  return create(planned.tree.task, spec)


def create_eval_runner(
  options: RunOptions,
  planned: Plan,
  partitioner: partitioning.Partitioner,
  **sinks: Any,
) -> EvalRunner:
  """The programs that this job runs beside training, or instead of it."""
  task = partitioner.task
  experiment, tree = planned.experiment, planned.tree
  evals, decodes = [], []
  if _evaluates(options, planned):
    evals = experiment.eval_programs() or [
      eval_program.SingleTaskEvalProgram(config) for config in tree.eval_inputs
    ]
  if options.decode_during_train or options.mode in ('decode', 'decode_once'):
    decodes = experiment.decode_programs() or [
      decode_program.SingleTaskDecodeProgram(config)
      for config in tree.decode_inputs
    ]
  writes = options.enable_summary_writer
  for one in evals:
    key = jax.random.key(task.evaluate.random_seed)
    one.setup(
      task,
      partitioner,
      pathlib.Path(options.job_log_dir),
      key,
      enable_summary_writer=writes,
    )
  for one in decodes:
    key = jax.random.key(task.decode.random_seed)
    one.setup(
      task,
      partitioner,
      pathlib.Path(options.job_log_dir),
      key,
      output_pickle=options.decode_output_pickle,
      enable_summary_writer=writes,
    )
  return EvalRunner(evals=evals, decodes=decodes, **sinks)


def create_writer(options: RunOptions, planned: Plan) -> summaries.Writer:
  """Where summaries go; only the first process writes."""
  enabled = jax.process_index() == 0 and options.enable_summary_writer
  wanted = summaries.WriterOptions(
    mode=options.mode,
    asynchronous=planned.tree.task.train.async_summary_writing,
    only_aggregates=options.pax_only_aggregate_summaries,
    wandb_project=options.wandb_project,
    mlflow_experiment=options.mlflow_experiment,
  )
  return summaries.create_writer(options.job_log_dir, enabled, wanted)


def create_goodput_recorder(
  options: RunOptions, began: float | None
) -> summaries.goodput.Recorder:
  """Counts what time is spent on; only the first process writes it down."""
  path = None
  if jax.process_index() == 0:
    file = summaries.goodput.GOODPUT_FILE
    path = os.path.join(options.job_log_dir, file)
  return summaries.goodput.Recorder(path, began=began)


def create_progress(task: Task) -> summaries.Progress:
  """What tells a person how it goes; only the first process does."""
  is_first = jax.process_index() == 0
  return summaries.Progress(
    int(task.train.num_train_steps),
    None if is_first else open(os.devnull, 'w', encoding='utf-8'),
  )


def initialize(
  options: RunOptions,
  partitioner: partitioning.Partitioner,
  show: Callable[[str], None],
) -> Any:
  """A fresh state, with what it takes from checkpoints of other jobs."""
  train = partitioner.task.train
  state = partitioner.initialize(jax.random.key(train.random_seed))
  initializer = init_from.Initializer(
    partitioner.state_metadata, partitioner.fresh_opt_states, show
  )
  if options.init_from:
    directory, step = init_from.parse(options.init_from)
    state = initializer.init_by_name(state, directory, step)
  elif rules := built(train.init_from_checkpoint_rules):
    state = initializer.init_by_rules(state, rules)
  if jax.process_index() == 0:
    lines = [f'{name}: {x!r}' for name, x in initializer.provenance.items()]
    file = pathlib.Path(options.job_log_dir) / summaries.PROVENANCE_FILE
    file.write_text('\n'.join([*lines, '']))
  return state


def restore_target(partitioner: partitioning.Partitioner) -> Any:
  """What a checkpoint is read as: shapes, or a fresh state to keep parts of."""
  train = partitioner.task.train
  if transformations.needs_fresh_state(built(train.restore_transformations)):
    return partitioner.initialize(jax.random.key(train.random_seed))
  return partitioner.state_metadata


def built(value: Any) -> Any:
  """What a Config makes, or the value itself where it is none."""
  if isinstance(value, pax_fiddle.Config):
    return value.Instantiate()
  return value


def _evaluates(options: RunOptions, planned: Plan) -> bool:
  if options.mode == 'train':
    return planned.eval_on_test
  return options.mode == 'eval' or options.eval_during_decode


def _set_infeed(config: Config[base_input.BaseInput]) -> None:
  """Tells an input which of the processes it reads for, unless told."""
  told = program.with_infeed_host(config)
  config.num_infeed_hosts = told.num_infeed_hosts
  config.infeed_host_index = told.infeed_host_index
