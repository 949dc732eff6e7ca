# SPDX-License-Identifier: Apache-2.0
"""Builds the jobs that evaluate, decode, infer from or quantize checkpoints."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
from typing import Any

from pax import (
  checkpoints,
  exit_codes,
  io_utils,
  partitioning,
  stop_signals,
  summaries,
)
from pax.checkpoints import paths, reading
from pax.files import storage
from pax.programs import (
  batch_shapes,
  checkpoint_follower,
  early_stopping,
  infer,
  initial_state,
  jobs,
  quantize,
  vocabulary_record,
)
from pax.programs import eval_runner as eval_runner_lib
from pax.programs.stopping.preemption import PreemptionHandler
from pax.runner import artifacts, job_setup
from pax.runner.job_dir import JobDir
from pax.runner.job_setup import JobSpec
from pax.runner.options import RunOptions
from praxis.layers.quantization.quantize import set_materialize_mode

Mode = io_utils.EvaluationMode


def build_eval(
  options: RunOptions,
  spec: JobSpec,
  directory: JobDir,
  preemption: PreemptionHandler,
) -> jobs.EvalJob:
  """Returns the job of --mode=eval, decode or decode_once.

  Args:
    options: the flags.
    spec: the experiment and its configuration.
    directory: the job directory.
    preemption: requests the stop of the job on signals.

  Raises:
    ValueError: there is no input to evaluate or decode, or no checkpoint.
  """
  partitioner = _partitioner(options, spec)
  with contextlib.ExitStack() as on_error:
    writer = job_setup.create_writer(options, spec)
    on_error.callback(writer.close)
    job = _build_eval(options, spec, directory, preemption, partitioner, writer)
    # Closing is the job's from now on.
    on_error.pop_all()
  return job


def _build_eval(
  options: RunOptions,
  spec: JobSpec,
  directory: JobDir,
  preemption: PreemptionHandler,
  partitioner: partitioning.Partitioner,
  writer: summaries.Writer,
) -> jobs.EvalJob:
  mode = Mode.EVAL if options.mode == 'eval' else Mode.DECODE
  task = partitioner.task
  progress = job_setup.create_progress(task)
  evals, decodes = job_setup.create_eval_programs(options, spec)
  eval_runner = eval_runner_lib.create_eval_runner(
    evals,
    decodes,
    partitioner,
    options.job_dir,
    output_pickle=options.decode_output_pickle,
    enable_summary_writer=options.enable_summary_writer,
    before_batch=preemption.raise_if_requested,
    read_batch=preemption.read,
    writer=writer,
    progress=progress,
  )
  if not eval_runner.evals and not eval_runner.decodes:
    verb = 'eval' if mode is Mode.EVAL else 'decode'
    raise ValueError(
      f'{spec.name} has no input to {verb}; return some from {verb}_datasets()'
    )
  return jobs.EvalJob(
    job_log_dir=options.job_dir,
    mode=mode,
    partitioner=partitioner,
    source=_state_source(
      options, partitioner, mode, directory, preemption, progress
    ),
    fingerprint=_fingerprint(spec, options.init_from or _source_dir(options)),
    eval_runner=eval_runner,
    early_stopping=early_stopping.create_early_stopping(
      job_setup.early_stopping_fn(spec, task), options.job_dir
    ),
    # Training may record its vocabularies after this job has started.
    before_checkpoint=functools.partial(
      vocabulary_record.check,
      [options.job_dir, options.restore_checkpoint_dir],
      eval_runner.inputs,
    ),
    writer=writer,
    progress=progress,
  )


def build_infer(
  options: RunOptions, spec: JobSpec, preemption: PreemptionHandler
) -> infer.InferJob:
  """Returns the job of --mode=infer.

  Raises:
    ValueError: the task has no inference runner, the experiment no input to
      decode, or there is no checkpoint.
  """
  partitioner = _partitioner(options, spec)
  task = partitioner.task
  runner = task.inference_runner
  inputs = [config.Instantiate() for config in spec.tree.decode_inputs]
  if not inputs:
    raise ValueError(
      f'{spec.name} has no input to infer; return some from decode_datasets()'
    )
  progress = job_setup.create_progress(task)
  if options.init_from:
    checkpoint = options.init_from
    state, _ = initial_state.initialize(
      partitioner,
      options.job_dir,
      progress.print,
      options.init_from,
      is_trained=False,
    )
  else:
    settings = task.infer_settings
    directory = settings.restore_checkpoint_dir or options.job_dir
    checkpoint = str(directory)
    vocabulary_record.check([directory], inputs)
    _, path = reading.find_checkpoint(
      directory, settings.restore_checkpoint_step
    )
    state = _state_reader(partitioner).read(path)
  return infer.InferJob(
    job_log_dir=options.job_dir,
    partitioner=partitioner,
    runner=runner,
    state=state,
    checkpoint=checkpoint,
    inputs=inputs,
    fingerprint=_fingerprint(spec, checkpoint),
    progress=progress,
    preemption=preemption,
  )


def build_quantize(
  options: RunOptions,
  spec: JobSpec,
  directory: JobDir,
  preemption: PreemptionHandler,
) -> quantize.QuantizeJob:
  """Returns the job of --mode=quantize.

  Args:
    options: the flags.
    spec: the experiment, whose quantized layers have mode INFERENCE.
    directory: the job directory, which receives the checkpoint.
    preemption: requests the stop of the job on signals.

  Raises:
    ValueError: the experiment has no such layer, there is no checkpoint to
      read, or the job directory has one.
  """
  folder = paths.checkpoints_folder(options.job_dir)
  if reading.checkpoint_steps(folder):
    raise ValueError(
      '--mode=quantize writes the only checkpoint of its directory, and'
      f' {folder} has some; use a new --job_log_dir'
    )
  float_tree = copy.deepcopy(spec.tree)
  set_materialize_mode(float_tree.task.model)
  _write_artifacts(options, spec)
  input_spec = _input_spec(spec)
  partitioner, float_partitioner = (
    job_setup.create_partitioner(each, input_spec)
    for each in (spec, dataclasses.replace(spec, tree=float_tree))
  )
  progress = job_setup.create_progress(partitioner.task)
  source = _chosen_state(options, float_partitioner, progress)
  _, state, _ = next(source.states())
  vocabulary_record.copy(options.restore_checkpoint_dir, options.job_dir)
  return quantize.QuantizeJob(
    job_log_dir=options.job_dir,
    float_partitioner=float_partitioner,
    partitioner=partitioner,
    state=state,
    checkpointer=checkpoints.create_checkpointer(
      checkpoints.CheckpointOptions(
        use_ocdbt=options.tensorstore_use_ocdbt and partitioner.is_spmd,
        timeout_secs=options.async_timeout_secs,
      ),
      options.job_dir,
      job=checkpoints.JobFunctions(
        before_write=directory.raise_if_gone,
        end_process=functools.partial(
          stop_signals.end_process, exit_codes.ERROR
        ),
      ),
    ),
    progress=progress,
    preemption=preemption,
  )


def _fingerprint(spec: JobSpec, checkpoint: storage.PathLike) -> str:
  """Returns a digest of what the outputs of a step depend on."""
  text = f'{checkpoint}\n{artifacts.config_text(spec.tree)}'
  return hashlib.sha256(text.encode()).hexdigest()


def _partitioner(
  options: RunOptions, spec: JobSpec
) -> partitioning.Partitioner:
  """The task on its devices; reads one batch at most."""
  _write_artifacts(options, spec)
  return job_setup.create_partitioner(spec, _input_spec(spec))


def _write_artifacts(options: RunOptions, spec: JobSpec) -> None:
  artifacts.write_before_build(
    options.job_dir,
    type(spec.experiment),
    spec.tree,
    prefix=f'{options.mode}_',
  )


def _input_spec(spec: JobSpec) -> Any:
  """Shapes of the batch that the variables are declared for."""
  tree = spec.tree
  inputs = [*tree.eval_inputs, *tree.decode_inputs]
  if inputs and not tree.task.train.always_use_train_for_model_init:
    return batch_shapes.batch_spec(inputs[0].Instantiate())
  declared = job_setup.declared_spec(spec.experiment)
  if declared is not None:
    return declared
  return batch_shapes.batch_spec(
    job_setup.train_input_config(spec).Instantiate()
  )


def _state_source(
  options: RunOptions,
  partitioner: partitioning.Partitioner,
  mode: Mode,
  directory: JobDir,
  preemption: PreemptionHandler,
  progress: summaries.Progress,
) -> checkpoint_follower.StateSource:
  """One initial state, selected checkpoints, or those of a running job."""
  if options.init_from or options.mode == 'decode_once':
    return _chosen_state(options, partitioner, progress)
  task = partitioner.task
  first_step, last_step = 0, int(task.train.num_train_steps)
  if mode is Mode.DECODE:
    # As in training, the last step is always decoded.
    first_step = min(task.train.decode_start_after_n_steps, last_step)
  return checkpoint_follower.CheckpointFollower(
    reader=_state_reader(partitioner),
    job_log_dir=options.job_dir,
    directory=_source_dir(options),
    mode=mode,
    last_step=last_step,
    first_step=max([first_step, *options.restore_checkpoint_step]),
    from_oldest=bool(options.restore_checkpoint_step),
    first_timeout_secs=options.first_checkpoint_timeout_secs,
    next_timeout_secs=options.next_checkpoint_timeout_secs,
    preemption=preemption,
    check_job_dir=lambda: directory.check_at_intervals(preemption.sleep),
    print_line=progress.print,
  )


def _chosen_state(
  options: RunOptions,
  partitioner: partitioning.Partitioner,
  progress: summaries.Progress,
) -> checkpoint_follower.StateSource:
  """The state of --init_from, or those of the chosen or newest checkpoint."""
  if options.init_from:
    state, _ = initial_state.initialize(
      partitioner,
      options.job_dir,
      progress.print,
      options.init_from,
      is_trained=False,
    )
    return checkpoint_follower.FixedState(state=state)
  return checkpoint_follower.SelectedCheckpoints(
    reader=_state_reader(partitioner),
    directory=_source_dir(options),
    steps=options.restore_checkpoint_step,
  )


def _source_dir(options: RunOptions) -> storage.Path:
  default_dir = paths.checkpoints_folder(options.job_dir)
  return storage.to_path(options.restore_checkpoint_dir or default_dir)


def _state_reader(
  partitioner: partitioning.Partitioner,
) -> checkpoint_follower.StateReader:
  """Reads moving averages in place of variables if the optimizer keeps them."""
  task = partitioner.task
  return checkpoint_follower.StateReader(
    state=initial_state.restore_target(partitioner),
    use_ema=task.has_ema_decay,
    restore_transformations=initial_state.instantiate(
      task.train.restore_transformations
    ),
  )
