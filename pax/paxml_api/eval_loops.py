# SPDX-License-Identifier: Apache-2.0
"""Parts of paxml's evaluation loops: programs on one state, and snapshots."""

from __future__ import annotations

import os
import pathlib
import shutil
import time
from collections.abc import Sequence
from typing import Any

import jax

from pax import train_states
from pax.paxml_api.tuning import DecodeMetrics, EvalMetrics
from pax.programs.decode import SingleTaskDecodeProgram
from pax.programs.eval import BaseEvalProgram

TrainState = train_states.TrainState


def run_eval_programs(
  *,
  eval_programs: Sequence[BaseEvalProgram],
  train_state: TrainState,
  step: int,
) -> tuple[EvalMetrics, float]:
  """Runs eval programs; returns their metrics and the seconds that they took.

  Args:
    eval_programs: The programs, set up.
    train_state: The eval state.
    step: Number of training steps of the state.
  """
  start = time.monotonic()
  outputs = [program.run(train_state, step) for program in eval_programs]
  seconds = time.monotonic() - start
  metrics = EvalMetrics(
    input_names=[program.eval_input.name for program in eval_programs],
    metrics_list=[output.eval_metrics for output in outputs],
    scoring_metrics_list=[output.eval_scoring_metrics for output in outputs],
    steps_per_sec=sum(output.num_eval_steps for output in outputs) / seconds,
  )
  return metrics, seconds


def run_decode_programs(
  *,
  decode_programs: Sequence[SingleTaskDecodeProgram],
  train_state: TrainState,
  step: int,
) -> tuple[DecodeMetrics, float]:
  """Runs decode programs; returns their metrics and the seconds they took.

  Args:
    decode_programs: The programs, set up.
    train_state: The eval state.
    step: Number of training steps of the state.
  """
  start = time.monotonic()
  outputs = [program.run(train_state, step) for program in decode_programs]
  seconds = time.monotonic() - start
  metrics = DecodeMetrics(
    input_names=[program.decode_input.name for program in decode_programs],
    metrics_list=[output.decode_metrics for output in outputs],
    processed_metrics_list=[
      output.processed_decode_metrics for output in outputs
    ],
    seqio_metrics_list=[output.seqio_metrics for output in outputs],
    steps_per_sec=sum(output.num_decode_steps for output in outputs) / seconds,
  )
  return metrics, seconds


def release_all_snapshots(
  checkpoint_dir: str | os.PathLike[str],
  step_prefix: str | None = None,
  step_format_fixed_length: int | None = None,
  step_name_format: Any = None,
) -> None:
  """Deletes the copies that Orbax made of the checkpoints in a directory.

  `orbax.checkpoint.checkpoint_utils.checkpoints_iterator` yields such copies; a
  job that is preempted leaves them.

  Args:
    checkpoint_dir: The directory of the checkpoints.
    step_prefix: Prefix of the names of checkpoints.
    step_format_fixed_length: Number of digits of a step in names.
    step_name_format: Orbax's format of names, instead of the two before.
  """
  from orbax import checkpoint as ocp

  if jax.process_index() != 0:
    return
  names = step_name_format or ocp.path.step.standard_name_format(
    step_prefix=step_prefix, step_format_fixed_length=step_format_fixed_length
  )
  directory = pathlib.Path(checkpoint_dir)
  for step in ocp.utils.checkpoint_steps(directory):
    snapshot = ocp.checkpoint_utils.get_snapshot_dir_from_step_dir(
      directory / names.build_name(step)
    )
    shutil.rmtree(snapshot, ignore_errors=True)
