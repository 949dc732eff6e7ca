# SPDX-License-Identifier: Apache-2.0
"""From the options to a job that evaluates, decodes or infers."""

from __future__ import annotations

import contextlib
import pathlib
from typing import Any

import jax

from pax import io_utils, partitioning, summaries
from pax.checkpoints import paths, reading
from pax.programs import (
  checkpoint_follower,
  early_stopping,
  infer,
  jobs,
  program,
)
from pax.programs.preemption import PreemptionHandler
from pax.runner import artifacts, job_setup
from pax.runner.options import RunOptions, UsageError

Mode = io_utils.EvaluationMode


def build_eval(
  options: RunOptions,
  planned: job_setup.Plan,
  preemption: PreemptionHandler,
) -> jobs.EvalJob:
  """Makes the job of --mode=eval, decode or decode_once.

  Raises:
    ValueError: there is nothing to evaluate or decode, or no checkpoint.
  """
  partitioner = _partitioner(options, planned)
  with contextlib.ExitStack() as on_error:
    writer = job_setup.create_writer(options, planned)
    on_error.callback(writer.close)
    made = _build_eval(options, planned, preemption, partitioner, writer)
    # From here on closing is the job's.
    on_error.pop_all()
  return made


def _build_eval(
  options: RunOptions,
  planned: job_setup.Plan,
  preemption: PreemptionHandler,
  partitioner: partitioning.Partitioner,
  writer: summaries.Writer,
) -> jobs.EvalJob:
  mode = Mode.EVAL if options.mode == 'eval' else Mode.DECODE
  task = partitioner.task
  sinks = {'writer': writer, 'progress': job_setup.create_progress(task)}
  eval_runner = job_setup.create_eval_runner(
    options,
    planned,
    partitioner,
    before_batch=preemption.raise_if_requested,
    **sinks,
  )
  if not eval_runner.evals and not eval_runner.decodes:
    what = 'eval' if mode is Mode.EVAL else 'decode'
    raise ValueError(
      f'{type(planned.experiment).__name__} has no input to {what}; return some'
      f' from {what}_datasets()'
    )
  return jobs.EvalJob(
    job_log_dir=options.job_log_dir,
    mode=mode,
    partitioner=partitioner,
    source=_source(options, partitioner, mode, preemption, sinks['progress']),
    eval_runner=eval_runner,
    early_stopping=early_stopping.create_early_stopping(
      task.early_stopping_fn, options.job_log_dir
    ),
    **sinks,
  )


def build_infer(
  options: RunOptions,
  planned: job_setup.Plan,
  preemption: PreemptionHandler,
) -> infer.InferJob:
  """Makes the job of --mode=infer.

  Raises:
    ValueError: the task has no inference runner, the experiment no input to
      decode, or there is no checkpoint.
  """
  partitioner = _partitioner(options, planned)
  task = partitioner.task
  runner = task.inference_runner
  inputs = [config.Instantiate() for config in planned.tree.decode_inputs]
  if not inputs:
    raise ValueError(
      f'{type(planned.experiment).__name__} has no input to infer; return some'
      ' from decode_datasets()'
    )
  progress = job_setup.create_progress(task)
  if options.init_from:
    state = job_setup.initialize(options, partitioner, progress.print)
    state, where = _for_eval(task, state), options.init_from
  else:
    settings = task.infer_writer
    directory = settings.restore_checkpoint_dir or options.job_log_dir
    where = str(directory)
    _, path = reading.find_checkpoint(
      directory, settings.restore_checkpoint_step
    )
    state = _reader(partitioner).read(path)
  return infer.InferJob(
    job_log_dir=options.job_log_dir,
    partitioner=partitioner,
    runner=runner,
    state=state,
    checkpoint=where,
    inputs=inputs,
    progress=progress,
    preemption=preemption,
  )


def _partitioner(
  options: RunOptions, planned: job_setup.Plan
) -> partitioning.Partitioner:
  """The task on its devices; all that is needed of data is their shapes."""
  artifacts.write_before_build(
    options.job_log_dir,
    type(planned.experiment),
    planned.tree,
    prefix=f'{options.mode}_',
  )
  return job_setup.create_partitioner(planned, _spec(planned))


def _spec(planned: job_setup.Plan) -> Any:
  """The shapes of a batch that the variables are declared by."""
  tree = planned.tree
  if not tree.task.train.always_use_train_for_model_init:
    inputs = [*tree.eval_inputs, *tree.decode_inputs]
    return job_setup.batch_spec(inputs[0].Instantiate())
  declared = job_setup.declared_spec(planned.experiment)
  if declared is not None:
    return declared
  if tree.train_input is None:
    # Says how many there are, and what is wanted.
    planned.experiment.training_dataset()
  return job_setup.batch_spec(tree.train_input.Instantiate())


def _source(
  options: RunOptions,
  partitioner: partitioning.Partitioner,
  mode: Mode,
  preemption: PreemptionHandler,
  progress: summaries.Progress,
) -> checkpoint_follower.StateSource:
  """Where states come from: another task, chosen checkpoints, or a job."""
  task = partitioner.task
  if options.init_from:
    state = job_setup.initialize(options, partitioner, progress.print)
    return checkpoint_follower.FixedState(state=_for_eval(task, state))
  own = pathlib.Path(options.job_log_dir) / paths.CHECKPOINTS
  directory = pathlib.Path(options.restore_checkpoint_dir or own)
  if options.mode == 'decode_once':
    return checkpoint_follower.SelectedCheckpoints(
      reader=_reader(partitioner),
      directory=directory,
      steps=options.restore_checkpoint_step,
    )
  if len(options.restore_checkpoint_step) > 1:
    raise UsageError(
      '--mode=decode takes one --restore_checkpoint_step, from which on it'
      f' decodes, got {list(options.restore_checkpoint_step)}; use decode_once'
    )
  starts = task.train.decode_start_after_n_steps if mode is Mode.DECODE else 0
  return checkpoint_follower.CheckpointFollower(
    reader=_reader(partitioner),
    job_log_dir=options.job_log_dir,
    directory=directory,
    mode=mode,
    last_step=int(task.train.num_train_steps),
    first_step=max([starts, *options.restore_checkpoint_step]),
    first_timeout_secs=options.first_checkpoint_timeout_secs,
    next_timeout_secs=options.next_checkpoint_timeout_secs,
    preemption=preemption,
  )


def _reader(
  partitioner: partitioning.Partitioner,
) -> checkpoint_follower.StateReader:
  """Averages are what is evaluated wherever the optimizer keeps them."""
  task = partitioner.task
  return checkpoint_follower.StateReader(
    state=job_setup.restore_target(partitioner),
    use_ema=task.has_ema_decay,
    restore_transformations=job_setup.built(task.train.restore_transformations),
  )


def _for_eval(task: Any, state: Any) -> Any:
  state = program.get_eval_train_state(task, state, task.has_ema_decay)
  jax.block_until_ready(state)
  return state
