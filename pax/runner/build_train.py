# SPDX-License-Identifier: Apache-2.0
"""Builds a TrainJob from the options."""

from __future__ import annotations

import contextlib
from concurrent import futures
from typing import Any

import jax
from absl import logging

from pax import checkpoints, partitioning, summaries
from pax.checkpoints import reading
from pax.partitioning import saved_step
from pax.programs import early_stopping
from pax.programs import train_program as train_program_lib
from pax.programs.jobs import TrainJob
from pax.programs.preemption import PreemptionHandler
from pax.runner import artifacts, job_setup
from pax.runner.options import RunOptions
from praxis import base_input

plan = job_setup.plan
batch_spec = job_setup.batch_spec
Plan = job_setup.Plan

# Compiles the step while the state is initialised or read, then describes it.
_POOL = futures.ThreadPoolExecutor(1, 'compile')


def build(
  options: RunOptions,
  planned: Plan,
  preemption: PreemptionHandler,
  began: float | None = None,
) -> TrainJob:
  """Makes everything the plan speaks of, checked before it is allocated.

  `began` is when the process did, in seconds since 1970; None is now.

  Raises:
    ValueError: the devices cannot hold it, or a checkpoint cannot be read.
  """
  with contextlib.ExitStack() as on_error:
    goodput = job_setup.create_goodput_recorder(options, began)
    on_error.callback(goodput.close)
    writer = job_setup.create_writer(options, planned)
    on_error.callback(writer.close)
    made = _build(options, planned, preemption, goodput=goodput, writer=writer)
    # From here on closing is the run's.
    on_error.pop_all()
  return made


def _build(
  options: RunOptions,
  planned: Plan,
  preemption: PreemptionHandler,
  *,
  goodput: summaries.goodput.Recorder,
  writer: summaries.Writer,
) -> TrainJob:
  tree, job_log_dir = planned.tree, options.job_log_dir
  artifacts.write_before_build(job_log_dir, type(planned.experiment), tree)
  train_input = _train_input(planned)
  spec = _checked_spec(planned, train_input)
  partitioner = job_setup.create_partitioner(planned, spec)
  task = partitioner.task
  _check_averages(task)
  partitioner.preflight()
  compiling = _POOL.submit(_compile, options, partitioner)
  sinks = {'writer': writer, 'progress': job_setup.create_progress(task)}
  checkpointer = _checkpointer(options, partitioner, writer)
  state, step = _first_state(
    options, partitioner, checkpointer, train_input, sinks['progress']
  )
  with goodput.record(summaries.goodput.COMPILE):
    compiling.result()
  describing = _POOL.submit(
    artifacts.write_after_build, job_log_dir, tree, task, spec
  )
  return TrainJob(
    job_log_dir=job_log_dir,
    partitioner=partitioner,
    train_program=_train_program(planned),
    state=state,
    step=step,
    train_input=train_input,
    eval_runner=job_setup.create_eval_runner(
      options,
      planned,
      partitioner,
      before_batch=preemption.raise_if_requested,
      **sinks,
    ),
    early_stopping=early_stopping.create_early_stopping(
      task.early_stopping_fn, job_log_dir
    ),
    checkpointer=checkpointer,
    preemption=preemption,
    describing=describing,
    goodput=goodput,
    **sinks,
  )


def _compile(
  options: RunOptions, partitioner: partitioning.Partitioner
) -> None:
  """Compiles the step, or takes it from the file that the options name."""
  step = partitioner.train_step()
  if options.aot_load:
    saved_step.load(step, options.aot_load)
  step.compile()


def _train_input(planned: Plan) -> base_input.BaseInput:
  if planned.tree.train_input is None:
    # Says how many there are, and what is wanted.
    planned.experiment.training_dataset()
  return planned.tree.train_input.Instantiate()


def _checked_spec(planned: Plan, train_input: base_input.BaseInput) -> Any:
  spec = job_setup.batch_spec(train_input)
  if planned.tree.task.train.enforce_input_specs:
    declared = job_setup.declared_spec(planned.experiment)
    if declared is not None:
      job_setup.check_spec(spec, declared)
  return spec


def _check_averages(task: Any) -> None:
  for name in ('eval_use_ema_states', 'decode_use_ema_states'):
    if getattr(task.train, name) and not task.has_ema_decay:
      raise ValueError(
        f'task.train.{name} is set, and the optimizer keeps no averages; set'
        ' task.train.learner.optimizer.ema_decay, as 0.999'
      )


def _train_program(planned: Plan) -> train_program_lib.BaseTrainProgram:
  programs = planned.experiment.train_programs()
  if len(programs) > 1:
    raise ValueError(
      f'train_programs() of {type(planned.experiment).__name__} must return at'
      f' most 1 program, got {len(programs)}'
    )
  return programs[0] if programs else train_program_lib.SingleTaskTrainProgram()


def _checkpointer(
  options: RunOptions,
  partitioner: partitioning.Partitioner,
  writer: summaries.Writer,
) -> checkpoints.Checkpointer:
  train = partitioner.task.train
  in_one_file = not (partitioner.is_spmd or options.pmap_use_tensorstore)
  kinds = checkpoints.CheckpointType
  return checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(
      save_interval_steps=train.save_interval_steps,
      max_to_keep=train.save_max_to_keep,
      keep_interval_secs=checkpoints.parse_duration(
        train.save_keep_interval_duration
      ),
      saving=options.enable_checkpoint_saving,
      asynchronous=options.jax_fully_async_checkpoint,
      timeout_secs=options.async_timeout_secs,
    ),
    options.job_log_dir,
    kinds.FLAX if in_one_file else kinds.GDA,
    before_write=writer.flush,
    restore_transformations=job_setup.built(train.restore_transformations),
  )


def _first_state(
  options: RunOptions,
  partitioner: partitioning.Partitioner,
  checkpointer: checkpoints.Checkpointer,
  train_input: base_input.BaseInput,
  progress: summaries.Progress,
) -> tuple[Any, int]:
  """The newest checkpoint's state, its input put back; else a fresh one."""
  if checkpointer.latest_step() is None:
    if partitioner.task.train.external_checkpoint_path:
      state = _external_state(partitioner)
    else:
      state = job_setup.initialize(options, partitioner, progress.print)
    return state, int(jax.device_get(state.step))
  restored = checkpointer.restore(job_setup.restore_target(partitioner))
  if restored.input_state is not None:
    train_input.set_state(restored.input_state)
  logging.info('Continuing from step %d', restored.step)
  return restored.state, restored.step


def _external_state(partitioner: partitioning.Partitioner) -> Any:
  """The whole state of another job, read by the handler that the task names."""
  train = partitioner.task.train
  target = job_setup.restore_target(partitioner)
  if handler := job_setup.built(train.external_checkpoint_handler):
    return handler.restore(train.external_checkpoint_path, item=target)
  found = reading.find_checkpoint(train.external_checkpoint_path)[1]
  return reading.read_tree(
    found,
    target,
    reading.leaf_names(target),
    job_setup.built(train.restore_transformations),
  )
