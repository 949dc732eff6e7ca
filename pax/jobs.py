# SPDX-License-Identifier: Apache-2.0
"""Jobs as functions of an experiment: train, evaluate, decode, infer.

Each function runs what `pax.main` runs for the same `--mode`, in this process.
The order of their parameters is that of paxml.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from pax import base_experiment
from pax.programs import early_stopping
from pax.programs.jobs import JobCallbacks
from pax.runner import options, runner, unsupported_flags

PathLike = str | os.PathLike[str]
EarlyStoppingFn = early_stopping.EarlyStoppingFn


def train_and_evaluate(
  experiment_config: base_experiment.BaseExperiment,
  job_log_dir: PathLike,
  maybe_use_persistence_checkpointing: bool = False,
  eval_on_test: bool | None = None,
  checkpoint_todelete_subdir: str | None = None,
  early_stopping_fn: EarlyStoppingFn | None = None,
  run_decode: bool = False,
  enable_auto_sharding: bool = False,
  enable_async_checkpointing: bool = True,
  enable_checkpoint_saving: bool = True,
  enforce_restore_shape_check: bool = True,
  tensorstore_use_ocdbt: bool = True,
  exit_after_ondemand_checkpoint: bool = True,
  override_num_train_steps: int | None = None,
  enable_summary_writer: bool = True,
  async_timeout_secs: int | None = None,
  train_first_result_callback_fn: Callable[[bool], None] | None = None,
  **flags: Any,
) -> int:
  """Trains, as `--mode=train` does; returns the exit code.

  Args:
    experiment_config: The experiment to train.
    job_log_dir: The directory of all outputs.
    maybe_use_persistence_checkpointing: Must be False; the format exists at
      Google only.
    eval_on_test: Whether to evaluate during training; None takes the setting of
      the task.
    checkpoint_todelete_subdir: Folder of checkpoints/ to which expired
      checkpoints are renamed; None deletes them.
    early_stopping_fn: Decides whether training ends early; None is that of the
      task.
    run_decode: Whether to decode during training.
    enable_auto_sharding: Must be False; JAX removed automatic shardings.
    enable_async_checkpointing: Whether a thread writes checkpoints.
    enable_checkpoint_saving: Whether to save checkpoints.
    enforce_restore_shape_check: Shapes are always checked.
    tensorstore_use_ocdbt: Whether checkpoints are OCDBT databases; every format
      is restored.
    exit_after_ondemand_checkpoint: Whether the job exits when SIGTERM has saved
      a checkpoint; otherwise it continues.
    override_num_train_steps: Number of training steps; None is that of the
      task.
    enable_summary_writer: Whether to write summaries.
    async_timeout_secs: Longest wait for other processes to write their part of
      a checkpoint; None is the default of the flag.
    train_first_result_callback_fn: Called with True after the first step.
    **flags: Other flags of the command, such as `init_from='/tmp/pax/tiny'`.

  Raises:
    ValueError: An argument is not supported, or both the task and the caller
      have an early stopping function.
  """
  del enforce_restore_shape_check
  _check_unsupported(
    maybe_use_persistence_checkpointing=maybe_use_persistence_checkpointing,
    enable_auto_sharding=enable_auto_sharding,
  )
  if override_num_train_steps:
    step_override = f'task.train.num_train_steps={override_num_train_steps}'
    flags['set'] = (*flags.get('set', ()), step_override)
  if async_timeout_secs is not None:
    flags['async_timeout_secs'] = async_timeout_secs
  flags |= {
    'eval_on_test': eval_on_test,
    'decode_during_train': run_decode,
    'checkpoint_todelete_subdir': checkpoint_todelete_subdir,
    'jax_fully_async_checkpoint': enable_async_checkpointing,
    'enable_checkpoint_saving': enable_checkpoint_saving,
    'enable_summary_writer': enable_summary_writer,
    'tensorstore_use_ocdbt': tensorstore_use_ocdbt,
    'exit_after_ondemand_checkpoint': exit_after_ondemand_checkpoint,
  }
  callbacks = JobCallbacks(
    early_stopping_fn=early_stopping_fn,
    first_result_fn=train_first_result_callback_fn,
  )
  return _run(experiment_config, job_log_dir, 'train', flags, callbacks)


def evaluate(
  experiment_config: base_experiment.BaseExperiment,
  job_log_dir: PathLike,
  maybe_use_persistence_checkpointing: bool = False,
  restore_checkpoint_dir: PathLike | None = None,
  restore_checkpoint_step: int | None = None,
  early_stopping_fn: EarlyStoppingFn | None = None,
  enable_auto_sharding: bool = False,
  enforce_restore_shape_check: bool = True,
  tensorstore_use_ocdbt: bool = False,
  enable_summary_writer: bool = True,
  **flags: Any,
) -> int:
  """Evaluates the checkpoints of a job, as `--mode=eval` does.

  Args:
    experiment_config: The experiment to evaluate.
    job_log_dir: The directory of the job, which holds the checkpoints.
    maybe_use_persistence_checkpointing: Must be False.
    restore_checkpoint_dir: The checkpoints; None is those of `job_log_dir`.
    restore_checkpoint_step: The first step to evaluate; None is any.
    early_stopping_fn: Receives the metrics and decides whether to stop; None is
      that of the task.
    enable_auto_sharding: Must be False.
    enforce_restore_shape_check: Shapes are always checked.
    tensorstore_use_ocdbt: Every format is restored.
    enable_summary_writer: Whether to write summaries.
    **flags: Other flags of the command, such as
      `next_checkpoint_timeout_secs=60`.

  Returns:
    The exit code.

  Raises:
    ValueError: An argument is not supported.
  """
  del enforce_restore_shape_check, tensorstore_use_ocdbt
  _check_unsupported(
    maybe_use_persistence_checkpointing=maybe_use_persistence_checkpointing,
    enable_auto_sharding=enable_auto_sharding,
  )
  flags |= _restore_flags(restore_checkpoint_dir, restore_checkpoint_step)
  flags['enable_summary_writer'] = enable_summary_writer
  callbacks = JobCallbacks(early_stopping_fn=early_stopping_fn)
  return _run(experiment_config, job_log_dir, 'eval', flags, callbacks)


def decode(
  experiment_config: base_experiment.BaseExperiment,
  job_log_dir: PathLike,
  maybe_use_persistence_checkpointing: bool = False,
  restore_checkpoint_dir: PathLike | None = None,
  restore_checkpoint_step: int | None = None,
  continuous_decode: bool = True,
  run_eval: bool | None = False,
  early_stopping_fn: EarlyStoppingFn | None = None,
  enable_auto_sharding: bool = False,
  output_pickle: bool = True,
  enforce_restore_shape_check: bool = True,
  tensorstore_use_ocdbt: bool = False,
  enable_summary_writer: bool = True,
  **flags: Any,
) -> int:
  """Decodes with the checkpoints of a job; returns the exit code.

  Args:
    experiment_config: The experiment to decode.
    job_log_dir: The directory of all outputs.
    maybe_use_persistence_checkpointing: Must be False.
    restore_checkpoint_dir: The job whose checkpoints are restored; None is
      `job_log_dir`.
    restore_checkpoint_step: The step to restore; None is the newest.
    continuous_decode: True follows a training job, as `--mode=decode` does;
      False decodes one checkpoint, as `--mode=decode_once` does.
    run_eval: Whether to evaluate each checkpoint, too.
    early_stopping_fn: Receives the metrics and decides whether to stop; None is
      that of the task.
    enable_auto_sharding: Must be False.
    output_pickle: Whether outputs are also written as `.npz`.
    enforce_restore_shape_check: Shapes are always checked.
    tensorstore_use_ocdbt: Every format is restored.
    enable_summary_writer: Whether to write summaries.
    **flags: Other flags of the command, such as `hang_timeout_secs=600`.

  Raises:
    ValueError: An argument is not supported.
  """
  del enforce_restore_shape_check, tensorstore_use_ocdbt
  _check_unsupported(
    maybe_use_persistence_checkpointing=maybe_use_persistence_checkpointing,
    enable_auto_sharding=enable_auto_sharding,
  )
  flags |= _restore_flags(restore_checkpoint_dir, restore_checkpoint_step)
  flags.setdefault('eval_during_decode', bool(run_eval))
  flags |= {
    'decode_output_pickle': output_pickle,
    'enable_summary_writer': enable_summary_writer,
  }
  callbacks = JobCallbacks(early_stopping_fn=early_stopping_fn)
  mode = 'decode' if continuous_decode else 'decode_once'
  return _run(experiment_config, job_log_dir, mode, flags, callbacks)


def infer_and_write(
  experiment_config: base_experiment.BaseExperiment,
  job_log_dir: PathLike,
  enforce_restore_shape_check: bool = True,
  tensorstore_use_ocdbt: bool = False,
  **flags: Any,
) -> int:
  """Writes the outputs of the inference runner, as `--mode=infer`.

  Args:
    experiment_config: The experiment; its `decode_datasets` are the inputs.
    job_log_dir: The directory of all outputs.
    enforce_restore_shape_check: Shapes are always checked.
    tensorstore_use_ocdbt: Every format is restored.
    **flags: Other flags of the command.

  Returns:
    The exit code.
  """
  del enforce_restore_shape_check, tensorstore_use_ocdbt
  return _run(experiment_config, job_log_dir, 'infer', flags, JobCallbacks())


def run_with_options(
  run_options: options.RunOptions,
  experiment_config: base_experiment.BaseExperiment,
  early_stopping_fn: EarlyStoppingFn | None = None,
) -> int:
  """Runs an experiment in the mode of the options; returns the exit code.

  Args:
    run_options: The options.
    experiment_config: The experiment.
    early_stopping_fn: Decides whether the job ends early; None is that of the
      task.
  """
  callbacks = JobCallbacks(early_stopping_fn=early_stopping_fn)
  return runner.run(run_options, experiment_config, callbacks)


def _check_unsupported(**arguments: Any) -> None:
  for name, value in arguments.items():
    if value:
      raise ValueError(
        f'{name}={value!r} is not supported: {unsupported_flags.FLAGS[name]}'
      )


def _restore_flags(
  directory: PathLike | None, step: int | None
) -> dict[str, Any]:
  flags: dict[str, Any] = {}
  if directory is not None:
    flags['restore_checkpoint_dir'] = os.fspath(directory)
  if step is not None:
    flags['restore_checkpoint_step'] = (step,)
  return flags


def _run(
  experiment: base_experiment.BaseExperiment,
  job_log_dir: PathLike,
  mode: str,
  flags: dict[str, Any],
  callbacks: JobCallbacks,
) -> int:
  run_options = options.RunOptions(
    mode=mode, job_log_dir=os.fspath(job_log_dir), **flags
  )
  return runner.run(run_options, experiment, callbacks)
