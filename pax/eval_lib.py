# SPDX-License-Identifier: Apache-2.0
"""Evaluation, decoding and inference as functions of an experiment."""

from __future__ import annotations

import os
from typing import Any

from pax import base_experiment
from pax.runner import options, runner

PathLike = str | os.PathLike[str]


def evaluate(
  experiment_config: base_experiment.BaseExperiment,
  job_log_dir: PathLike,
  **flags: Any,
) -> int:
  """Evaluates the checkpoints of a job, as `--mode=eval`; the exit code.

  Args:
    experiment_config: What is evaluated.
    job_log_dir: The directory of the job.
    **flags: Other flags of the command, as `next_checkpoint_timeout_secs=60`.
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
  """Decodes checkpoints, as `--mode=decode` or decode_once; the exit code.

  Args:
    experiment_config: What decodes.
    job_log_dir: The directory of everything that is written.
    restore_checkpoint_dir: Where checkpoints are, if not there.
    restore_checkpoint_step: Which one; None is the newest.
    continuous_decode: Whether to follow a training job.
    **flags: Other flags of the command, as `eval_during_decode=True`.
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
  """Writes what the inference runner makes, as `--mode=infer`; the exit code.

  Args:
    experiment_config: What infers; its `decode_datasets` are the inputs.
    job_log_dir: The directory of everything that is written.
    **flags: Other flags of the command.
  """
  return _run(experiment_config, job_log_dir, 'infer', flags)


def _run(
  experiment_config: base_experiment.BaseExperiment,
  job_log_dir: PathLike,
  mode: str,
  flags: dict[str, Any],
) -> int:
  made = options.RunOptions(
    mode=mode, job_log_dir=os.fspath(job_log_dir), **flags
  )
  return runner.run(made, experiment_config)
