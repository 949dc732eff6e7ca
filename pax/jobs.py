# SPDX-License-Identifier: Apache-2.0
"""Jobs as functions of an experiment: train, evaluate, decode, infer.

Each function runs what `pax.main` runs for the same `--mode`, in this process.
"""

from __future__ import annotations

import os
from typing import Any

from pax import base_experiment
from pax.runner import options, runner

PathLike = str | os.PathLike[str]


def train_and_evaluate(
  experiment_config: base_experiment.BaseExperiment,
  job_log_dir: PathLike,
  *,
  eval_on_test: bool | None = None,
  run_decode: bool = False,
  **flags: Any,
) -> int:
  """Trains, as `--mode=train` does; returns the exit code.

  Args:
    experiment_config: The experiment to train.
    job_log_dir: The directory of all outputs.
    eval_on_test: Whether to evaluate during training; None takes the setting of
      the task.
    run_decode: Whether to decode during training.
    **flags: Other flags of the command, such as `init_from='/tmp/pax/tiny'`.
  """
  flags['eval_on_test'] = eval_on_test
  flags['decode_during_train'] = run_decode
  return _run(experiment_config, job_log_dir, 'train', flags)


def evaluate(
  experiment_config: base_experiment.BaseExperiment,
  job_log_dir: PathLike,
  **flags: Any,
) -> int:
  """Evaluates the checkpoints of a job, as `--mode=eval` does.

  Args:
    experiment_config: The experiment to evaluate.
    job_log_dir: The directory of the job, which holds the checkpoints.
    **flags: Other flags of the command, such as
      `next_checkpoint_timeout_secs=60`.

  Returns:
    The exit code.
  """
  return _run(experiment_config, job_log_dir, 'eval', flags)


def decode(
  experiment_config: base_experiment.BaseExperiment,
  job_log_dir: PathLike,
  *,
  restore_checkpoint_dir: PathLike | None = None,
  restore_checkpoint_step: int | None = None,
  continuous_decode: bool = True,
  **flags: Any,
) -> int:
  """Decodes with the checkpoints of a job; returns the exit code.

  Args:
    experiment_config: The experiment to decode.
    job_log_dir: The directory of all outputs.
    restore_checkpoint_dir: The job whose checkpoints are restored; None is
      `job_log_dir`.
    restore_checkpoint_step: The step to restore; None is the newest.
    continuous_decode: True follows a training job, as `--mode=decode` does;
      False decodes one checkpoint, as `--mode=decode_once` does.
    **flags: Other flags of the command, such as `eval_during_decode=True`.
  """
  if restore_checkpoint_dir is not None:
    flags['restore_checkpoint_dir'] = os.fspath(restore_checkpoint_dir)
  if restore_checkpoint_step is not None:
    flags['restore_checkpoint_step'] = (restore_checkpoint_step,)
  mode = 'decode' if continuous_decode else 'decode_once'
  return _run(experiment_config, job_log_dir, mode, flags)


def infer_and_write(
  experiment_config: base_experiment.BaseExperiment,
  job_log_dir: PathLike,
  **flags: Any,
) -> int:
  """Writes the outputs of the inference runner, as `--mode=infer`.

  Args:
    experiment_config: The experiment; its `decode_datasets` are the inputs.
    job_log_dir: The directory of all outputs.
    **flags: Other flags of the command.

  Returns:
    The exit code.
  """
  return _run(experiment_config, job_log_dir, 'infer', flags)


def _run(
  experiment: base_experiment.BaseExperiment,
  job_log_dir: PathLike,
  mode: str,
  flags: dict[str, Any],
) -> int:
  run_options = options.RunOptions(
    mode=mode, job_log_dir=os.fspath(job_log_dir), **flags
  )
  return runner.run(run_options, experiment)
