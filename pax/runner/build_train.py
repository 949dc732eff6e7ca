# SPDX-License-Identifier: Apache-2.0
"""Sets up the executor of --mode=train from the options."""

from __future__ import annotations

import contextlib
import functools
import pathlib
from collections.abc import Iterator, Mapping

import jax

from pax import (
  base_executor,
  checkpoints,
  executors,
  exit_codes,
  garbage_collection,
  partitioning,
  stop_signals,
  summaries,
)
from pax.programs import initial_state
from pax.programs import train_program as train_program_lib
from pax.programs.job_services import JobServices
from pax.programs.jobs import Outcome, TrainJob
from pax.programs.running_mode import RunningMode
from pax.programs.step_reporter import DivergedError
from pax.programs.stopping.preemption import PreemptedError, PreemptionHandler
from pax.programs.training_checkpointer import TrainingCheckpointer
from pax.runner import artifacts, emergency, job_setup, run_config
from pax.runner.job_dir import JobDir
from pax.runner.job_setup import JobSpec
from pax.runner.options import RunOptions
from pax.steps import Batch
from praxis import base_input, pax_fiddle

Config = pax_fiddle.Config


def run(
  options: RunOptions,
  spec: JobSpec,
  directory: JobDir,
  preemption: PreemptionHandler,
  began: float | None = None,
) -> Outcome:
  """Trains by the experiment's own executor, or by the default one.

  Args:
    options: the flags.
    spec: the experiment and its configuration.
    directory: the job directory.
    preemption: requests the stop of the job on signals.
    began: start of the process in seconds since 1970; None is now.

  Raises:
    ValueError: the state does not fit the devices, or a checkpoint cannot be
      restored.
  """
  executor = spec.experiment.executor() or executors.DefaultExecutor()
  task = _create_task(options, spec)
  partitioner = _create_partitioner(spec, task)
  with _open_services(
    options, spec, task, directory, preemption, began
  ) as services:
    # Loops of paxml run in the context of the mesh.
    is_default = isinstance(executor, executors.DefaultExecutor)
    mesh = None if is_default else partitioner.global_mesh
    with jax.set_mesh(mesh) if mesh else contextlib.nullcontext():
      _set_up(executor, options, spec, task, partitioner, services)
      if not is_default:
        garbage_collection.resume()
      try:
        executor.start()
      except PreemptedError:
        return Outcome.PREEMPTED
      except DivergedError as e:
        services.progress.print(str(e))
        return Outcome.DIVERGED
  return executor.outcome or Outcome.DONE


@contextlib.contextmanager
def build(
  options: RunOptions,
  spec: JobSpec,
  directory: JobDir,
  preemption: PreemptionHandler,
  began: float | None = None,
) -> Iterator[TrainJob]:
  """Yields the training job of the default executor; closes its outputs.

  Args:
    options: the flags.
    spec: the experiment and its configuration.
    directory: the job directory.
    preemption: requests the stop of the job on signals.
    began: start of the process in seconds since 1970; None is now.

  Raises:
    ValueError: the state does not fit the devices, or a checkpoint cannot be
      restored.
  """
  executor = executors.DefaultExecutor()
  task = _create_task(options, spec)
  partitioner = _create_partitioner(spec, task)
  with _open_services(
    options, spec, task, directory, preemption, began
  ) as services:
    _set_up(executor, options, spec, task, partitioner, services)
    yield executor.create_job()


def _create_task(options: RunOptions, spec: JobSpec) -> job_setup.Task:
  """Returns the task; writes its configuration first."""
  artifacts.write_before_build(
    options.job_dir, type(spec.experiment), spec.tree
  )
  task = spec.tree.task.Instantiate()
  _check_ema(task)
  return task


def _create_partitioner(
  spec: JobSpec, task: job_setup.Task
) -> partitioning.Partitioner:
  return partitioning.create_experiment_or_default_partitioner(
    experiment_config=spec.experiment,
    jax_task=task,
    running_mode=RunningMode.TRAIN,
    checkpoint_type=None,
    input_p=spec.tree.train_input,
    enable_auto_sharding=False,
  )


@contextlib.contextmanager
def _open_services(
  options: RunOptions,
  spec: JobSpec,
  task: job_setup.Task,
  directory: JobDir,
  preemption: PreemptionHandler,
  began: float | None,
) -> Iterator[JobServices]:
  """Opens the outputs of the job and closes them."""
  with contextlib.ExitStack() as on_error:
    goodput = job_setup.create_goodput_recorder(options, began)
    on_error.callback(goodput.close)
    writer = job_setup.create_writer(options, spec)
    on_error.callback(writer.close)
    is_spmd = task.model.ici_mesh_shape is not None
    in_one_file = not (is_spmd or options.pmap_use_tensorstore)
    types = checkpoints.CheckpointType
    kind = types.FLAX if in_one_file else types.GDA
    progress = job_setup.create_progress(task)
    job = _job_functions(directory, writer, progress)
    services = JobServices(
      job_log_dir=options.job_dir,
      checkpoints=_checkpointer(
        options, task, kind, directory, preemption, job
      ),
      checkpoint_type=kind,
      writer=writer,
      goodput=goodput,
      progress=progress,
      preemption=preemption,
      init_from=options.init_from,
      accept_changed_data=options.accept_changed_data,
      aot_load=options.aot_load,
      pgle=options.pgle,
      trust_foreign_files=options.trust_foreign_files,
      describe=functools.partial(
        _describe, options.job_dir, spec.tree, spec.experiment.export_files()
      ),
      decode_output_pickle=options.decode_output_pickle,
    )
    # Closing is that of the services from now on.
    on_error.pop_all()
  with services:
    yield services


def _describe(
  job_log_dir: str,
  tree: Config[run_config.RunConfig],
  export_files: Mapping[str, str | pathlib.Path],
  task: job_setup.Task,
  input_spec: Batch,
) -> None:
  """Writes the files that describe the model, once it has its variables."""
  artifacts.write_after_build(job_log_dir, tree, task, input_spec)
  artifacts.write_export_files(job_log_dir, export_files)


def _set_up(
  executor: base_executor.BaseExecutor,
  options: RunOptions,
  spec: JobSpec,
  task: job_setup.Task,
  partitioner: partitioning.Partitioner,
  services: JobServices,
) -> None:
  train_program = _train_program(spec)
  if first_result_fn := spec.callbacks.first_result_fn:
    train_program.register_first_result_callback_fn(first_result_fn)
  eval_programs, decode_programs = job_setup.create_eval_programs(options, spec)
  for program in (train_program, *eval_programs, *decode_programs):
    program.writer = services.writer
  executor.setup(
    task,
    pathlib.Path(options.job_dir),
    TrainingCheckpointer(services),
    partitioner,
    _input_specs_provider(spec),
    job_setup.train_input_config(spec),
    train_program,
    eval_programs,
    decode_programs,
    job_setup.early_stopping_fn(spec, task),
    exit_after_ondemand_checkpoint=options.exit_after_ondemand_checkpoint,
    enable_summary_writer=options.enable_summary_writer,
  )


def _input_specs_provider(
  spec: JobSpec,
) -> base_input.BaseInputSpecsProvider:
  """Returns the provider; the default one has the overridden input."""
  config = spec.experiment.get_input_specs_provider_params()
  if issubclass(config.cls, base_input.DatasetInputSpecsProvider):
    config.input_p = spec.tree.train_input
  return config.Instantiate()


def _check_ema(task: job_setup.Task) -> None:
  for name in ('eval_use_ema_states', 'decode_use_ema_states'):
    if getattr(task.train, name) and not task.has_ema_decay:
      raise ValueError(
        f'task.train.{name} is set, but the optimizer keeps no moving averages;'
        ' set task.train.learner.optimizer.ema_decay, such as 0.999'
      )


def _train_program(spec: JobSpec) -> train_program_lib.BaseTrainProgram:
  programs = spec.experiment.train_programs()
  if len(programs) != 1:
    raise ValueError(
      f'train_programs() of {spec.name} must return 1 program, got'
      f' {len(programs)}'
    )
  return programs[0]


def _job_functions(
  directory: JobDir, writer: summaries.Writer, progress: summaries.Progress
) -> checkpoints.JobFunctions:
  def before_write() -> None:
    writer.flush()
    directory.upload()
    # Last: flushing waits for the devices.
    directory.raise_if_gone()

  return checkpoints.JobFunctions(
    before_write=before_write,
    print_line=progress.print,
    end_process=functools.partial(stop_signals.end_process, exit_codes.ERROR),
  )


def _checkpointer(
  options: RunOptions,
  task: job_setup.Task,
  kind: checkpoints.CheckpointType,
  directory: JobDir,
  preemption: PreemptionHandler,
  job: checkpoints.JobFunctions,
) -> checkpoints.Checkpointer:
  train = task.train
  checkpoint_options = checkpoints.CheckpointOptions(
    save_interval_steps=train.save_interval_steps,
    max_to_keep=train.save_max_to_keep,
    keep_interval_secs=checkpoints.parse_duration(
      train.save_keep_interval_duration
    ),
    todelete_subdir=options.checkpoint_todelete_subdir,
    skips_corrupt=options.on_corrupt_checkpoint == 'fallback',
    single_replica_restore=options.single_replica_restore,
    saving=options.enable_checkpoint_saving,
    asynchronous=options.jax_fully_async_checkpoint,
    # Orbax saves no arrays that exist on one process only, as those of pmap.
    use_ocdbt=options.tensorstore_use_ocdbt
    and task.model.ici_mesh_shape is not None,
    timeout_secs=options.async_timeout_secs,
  )

  checkpointer = checkpoints.create_checkpointer(
    checkpoint_options,
    options.job_dir,
    kind,
    restore_transformations=initial_state.instantiate(
      train.restore_transformations
    ),
    job=job,
  )
  emergency_dir = None
  if options.emergency_dir:
    emergency_dir = emergency.EmergencyDir(
      pathlib.Path(options.emergency_dir), kind, checkpoint_options
    )
  return emergency.GuardedCheckpointer(
    checkpointer,
    directory,
    checkpoint_options,
    emergency_dir,
    preemption.sleep,
  )
