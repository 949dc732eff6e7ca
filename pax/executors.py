# SPDX-License-Identifier: Apache-2.0
"""The default executor of training jobs."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import jax

from pax import base_executor, partitioning, summaries, tasks_lib
from pax.files import side_files
from pax.inputs.rows import indexed
from pax.partitioning import profile_guided, saved_step
from pax.programs import (
  batch_shapes,
  early_stopping,
  eval_runner,
  train,
  vocabulary_record,
  vocabulary_size,
)
from pax.programs.decode import SingleTaskDecodeProgram
from pax.programs.eval import BaseEvalProgram
from pax.programs.job_services import JobServices
from pax.programs.jobs import TrainJob
from pax.programs.train_program import BaseTrainProgram
from pax.programs.training_checkpointer import TrainingCheckpointer
from pax.steps import Batch
from praxis import base_input, pax_fiddle


class DefaultExecutor(base_executor.BaseExecutor):
  """Runs the training loop; subclasses may act before and after it."""

  def setup(
    self,
    jax_task: tasks_lib.SingleTask,
    job_log_dir: str | os.PathLike[str],
    checkpointer: TrainingCheckpointer,
    partitioner: partitioning.Partitioner,
    input_specs_provider: base_input.BaseInputSpecsProvider,
    train_input_p: pax_fiddle.Config[base_input.BaseInput],
    train_program: BaseTrainProgram,
    eval_programs: Sequence[BaseEvalProgram],
    decode_programs: Sequence[SingleTaskDecodeProgram],
    early_stopping_fn: early_stopping.EarlyStoppingFn | None,
    exit_after_ondemand_checkpoint: bool = False,
    enable_summary_writer: bool = True,
  ) -> None:
    """Compiles the train step, and restores or initializes the state.

    Args:
      jax_task: The task.
      job_log_dir: The directory of the job.
      checkpointer: The checkpointer of the job, with its services.
      partitioner: The partitioner, not set up.
      input_specs_provider: Provides the shapes of a training batch; the default
        one stands for the first batch of the input.
      train_input_p: The config of the training input.
      train_program: The train program, not set up.
      eval_programs: The eval programs, not set up.
      decode_programs: The decode programs, not set up.
      early_stopping_fn: Decides whether training ends early; None never does.
      exit_after_ondemand_checkpoint: Unused: the preemption handler of the
        services has it, which the runner makes.
      enable_summary_writer: Whether programs may write summaries.

    Raises:
      ValueError: The state does not fit the devices, or a checkpoint cannot be
        restored.
    """
    del exit_after_ondemand_checkpoint
    self._task = jax_task
    self._job_log_dir = pathlib.Path(job_log_dir)
    self._checkpointer = checkpointer
    self._partitioner = partitioner
    self._train_program = train_program
    self._eval_programs = eval_programs
    self._decode_programs = decode_programs
    self._early_stopping_fn = early_stopping_fn
    self._enable_summary_writer = enable_summary_writer
    self._train_prng_seed = jax.random.key(jax_task.train.random_seed)
    self._eval_prng_seed = jax.random.key(jax_task.evaluate.random_seed)
    self._decode_prng_seed = jax.random.key(jax_task.decode.random_seed)
    train_input_p = partitioner.preprocess_input_config(train_input_p)
    self._train_input_pipeline = train_input_p.Instantiate()
    self._input_spec = self._checked_input_spec(input_specs_provider)
    # None before the first step.
    self._describing: futures.Future[None] | None = None
    partitioner.setup(
      jax_task, self._train_prng_seed, partitioner.init_spec(self._input_spec)
    )
    partitioner.preflight()
    vocabulary_record.record(
      str(self._job_log_dir),
      self._train_input_pipeline,
      has_checkpoints=checkpointer.step_to_restore is not None,
    )
    vocabulary_size.check(jax_task, self._train_input_pipeline)
    self._set_up_state()

  def start(self) -> None:
    """Runs the training loop and sets `outcome`."""
    self.outcome = train.train(self.create_job())
    # There may have been no step.
    self._describe().result()

  def create_job(self) -> TrainJob:
    """Returns the job of the training loop, with programs set up."""
    services = self._checkpointer.services
    return TrainJob(
      job_log_dir=str(self._job_log_dir),
      partitioner=self._partitioner,
      train_program=self._train_program,
      state=self._partitioned_train_state,
      step=int(jax.device_get(self._partitioned_train_state.step)),
      train_input=self._train_input_pipeline,
      eval_runner=self._create_eval_runner(services),
      early_stopping=early_stopping.create_early_stopping(
        self._early_stopping_fn, str(self._job_log_dir)
      ),
      checkpointer=services.checkpoints,
      preemption=services.preemption,
      goodput=services.goodput,
      writer=services.writer,
      progress=services.progress,
      enable_summary_writer=self._enable_summary_writer,
      after_first_step=self._describe,
    )

  def _describe(self) -> futures.Future[None]:
    """Returns the writing of the files that describe the model, begun once."""
    if self._describing is None:
      thread = futures.ThreadPoolExecutor(1, 'describe')
      self._describing = thread.submit(
        self._checkpointer.services.describe, self._task, self._input_spec
      )
      # The thread ends after its task.
      thread.shutdown(wait=False)
    return self._describing

  def _checked_input_spec(
    self, provider: base_input.BaseInputSpecsProvider
  ) -> Batch:
    """Returns the shapes of the first batch of this host."""
    with self._checkpointer.services.preemption.watch():
      input_spec = batch_shapes.batch_spec(self._train_input_pipeline)
    if not self._train_program.reads_host_batches:
      batch_shapes.check_numbers(self._train_input_pipeline.name, input_spec)
    # The default provider would read another first batch.
    is_default = isinstance(provider, base_input.DatasetInputSpecsProvider)
    if self._task.train.enforce_input_specs and not is_default:
      batch_shapes.check_spec(input_spec, provider.get_input_specs())
    return input_spec

  def _set_up_state(self) -> None:
    """Restores or initializes the state while the step is compiled."""
    services = self._checkpointer.services
    compile_step = self._step_compiler()
    thread = futures.ThreadPoolExecutor(1, 'compile')
    try:
      compiling = thread.submit(compile_step)
      (
        self._partitioned_train_state,
        self._train_state_provenance,
        self._total_num_params,
        self._train_prng_seed,
      ) = self._checkpointer.get_model_states(
        self._partitioner,
        self._partitioner.get_train_state_metadata(),
        self._train_prng_seed,
        self._train_input_pipeline,
      )
      with services.goodput.record(summaries.goodput.COMPILE):
        compiling.result()
    finally:
      # The thread ends after its task.
      thread.shutdown(wait=False)

  def _step_compiler(self) -> Callable[[], Any]:
    """Returns the function that compiles the step; all processes call this."""
    services = self._checkpointer.services
    step = self._partitioner.train_step()
    has_own_step = self._train_program.has_own_step
    if has_own_step and services.pgle:
      raise ValueError(
        f'--pgle={services.pgle} recompiles the train step of the'
        f' partitioner, but {type(self._train_program).__name__} trains by a'
        ' step of its own; leave out --pgle, or set JAX_ENABLE_PGLE=true,'
        ' which applies to all functions'
      )
    if services.aot_load:
      return functools.partial(self._load_step, services.aot_load)
    if has_own_step:
      return lambda: None
    if services.pgle == 'auto' or jax.config.values['jax_enable_pgle']:
      profile_guided.run_automatically(step)
      return lambda: None
    if services.pgle == 'manual':
      return profile_guided.ManualRecompilation(
        step,
        self._job_log_dir,
        services.progress.print,
        lambda: services.goodput.record(summaries.goodput.COMPILE),
        int(self._task.train.num_train_steps),
      ).compile
    return step.compile

  def _load_step(self, file: str) -> None:
    """Loads the step from the file of --aot_load."""
    services = self._checkpointer.services
    saved_step.load(
      self._partitioner.train_step(),
      file,
      trust_foreign_files=services.trust_foreign_files,
    )

  def _create_eval_runner(
    self, services: JobServices
  ) -> eval_runner.EvalRunner:
    for program in (*self._eval_programs, *self._decode_programs):
      program.writing = side_files.tolerate_errors
    runner = eval_runner.create_eval_runner(
      self._eval_programs,
      self._decode_programs,
      self._partitioner,
      self._job_log_dir,
      output_pickle=services.decode_output_pickle,
      enable_summary_writer=self._enable_summary_writer,
      writer=services.writer,
      progress=services.progress,
      before_batch=services.preemption.raise_if_requested,
      read_batch=services.preemption.read,
    )
    vocabulary_record.check([str(self._job_log_dir)], runner.inputs)
    is_evaluated = bool(self._task.train.eval_interval_steps)
    for program in (*(runner.evals if is_evaluated else ()), *runner.decodes):
      inp = program.input
      if isinstance(inp, indexed.IndexedInput) and inp.reset_for_eval:
        # Raises if there are none, not only at the first evaluation.
        _ = inp.num_examples
    return runner
