# SPDX-License-Identifier: Apache-2.0
"""From the options to a `Run`: experiment, configuration, checks, objects."""

from __future__ import annotations

import dataclasses
import os
from concurrent import futures
from typing import Any

import jax
from absl import logging

from pax import checkpoints, partitioning, summaries
from pax.programs import eval as eval_program
from pax.programs import interrupts as interrupts_lib
from pax.programs.run import Run
from pax.runner import (
  artifacts,
  experiments,
  overrides,
  run_config,
  unsupported,
)
from pax.runner.options import RunOptions
from praxis import base_input, pax_fiddle

Config = pax_fiddle.Config

# Compiles the step while the state is initialised or read, then describes it.
_POOL = futures.ThreadPoolExecutor(1, 'compile')


@dataclasses.dataclass(frozen=True)
class Plan:
  """What to run, still as data."""

  experiment: type
  tree: Config[run_config.RunConfig]
  eval_on_test: bool


def plan(options: RunOptions) -> Plan:
  """Finds the experiment and makes its configuration.

  Raises:
    UsageError: an option is missing or has no meaning.
    ValueError: no such experiment, constant or field.
  """
  settings = overrides.parse(options.set)
  instance = experiments.find(options.exp, settings)
  experiment = type(instance)
  instance.validate()
  tree = run_config.from_experiment(instance, settings)
  unsupported.check(instance, tree)
  for config in (tree.train_input, *tree.eval_inputs):
    _set_infeed(config)
  wish = options.eval_on_test
  if wish is None:
    wish = getattr(experiment, 'EVAL_ON_TEST', False)
  return Plan(experiment, tree, wish)


def build(
  options: RunOptions,
  planned: Plan,
  interrupts: interrupts_lib.Interrupts,
) -> Run:
  """Makes everything the plan speaks of, checked before it is allocated.

  Raises:
    ValueError: the devices cannot hold it, or a checkpoint cannot be read.
  """
  tree, job_log_dir = planned.tree, options.job_log_dir
  is_first = jax.process_index() == 0
  artifacts.write_before_build(job_log_dir, planned.experiment, tree)
  train_input = tree.train_input.Instantiate()
  spec = batch_spec(train_input)
  partitioner = partitioning.create_partitioner(tree.task, spec)
  partitioner.preflight()
  train_step = partitioner.train_step()
  compiling = _POOL.submit(train_step.compile)
  writer = summaries.create_writer(
    job_log_dir, enabled=is_first and options.enable_summary_writer
  )
  checkpointer = _checkpointer(options, partitioner, writer)
  state, step = _first_state(partitioner, checkpointer, train_input)
  compiling.result()
  describing = _POOL.submit(
    artifacts.write_after_build, job_log_dir, tree, partitioner.task, spec
  )
  return Run(
    job_log_dir=job_log_dir,
    partitioner=partitioner,
    train_step=train_step,
    state=state,
    step=step,
    train_input=train_input,
    evals=tuple(
      eval_program.EvalProgram(partitioner, config.Instantiate())
      for config in (tree.eval_inputs if planned.eval_on_test else ())
    ),
    checkpointer=checkpointer,
    writer=writer,
    progress=summaries.Progress(
      int(partitioner.task.train.num_train_steps),
      None if is_first else open(os.devnull, 'w', encoding='utf-8'),
    ),
    interrupts=interrupts,
    describing=describing,
  )


def batch_spec(inp: base_input.BaseInput) -> Any:
  """Shape and dtype of every array in a batch of this host."""
  batch = inp.peek_padded()
  if batch is None:
    raise ValueError(f'the training input {inp.name!r} has no batch')
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)


def _set_infeed(config: Config[base_input.BaseInput]) -> None:
  """Tells an input which of the processes it reads for, unless told."""
  if not config.num_infeed_hosts:
    config.num_infeed_hosts = jax.process_count()
    config.infeed_host_index = jax.process_index()


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
  )


def _first_state(
  partitioner: partitioning.Partitioner,
  checkpointer: checkpoints.Checkpointer,
  train_input: base_input.BaseInput,
) -> tuple[Any, int]:
  """The newest checkpoint's state, its input put back; else a fresh one."""
  if checkpointer.latest_step() is None:
    key = jax.random.key(partitioner.task.train.random_seed)
    return partitioner.initialize(key), 0
  restored = checkpointer.restore(partitioner.state_metadata)
  if restored.input_state is not None:
    train_input.set_state(restored.input_state)
  logging.info('Continuing from step %d', restored.step)
  return restored.state, restored.step
