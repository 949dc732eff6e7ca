# SPDX-License-Identifier: Apache-2.0
"""Files of the outputs of eval and decode programs, for custom programs."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import jax
from absl import flags, logging

from pax import io_utils
from pax.programs import metric_accumulator
from praxis import py_utils

PathLike = str | os.PathLike[str]
_AGGREGATES_FLAG = 'pax_only_aggregate_summaries'


def can_load_written_outputs(
  basedir: PathLike, pname: str, mode: io_utils.EvaluationMode, step: int
) -> bool:
  """Returns whether the outputs of a step exist, the same in all processes.

  Args:
    basedir: The directory of the job.
    pname: Name of the input.
    mode: Kind of the outputs.
    step: Training step of the state.
  """
  num_outputs = 0
  if jax.process_index() == 0:
    try:
      num_outputs = len(
        io_utils.load_outputs(basedir, pname, mode.value, int(step))
      )
    except (OSError, ValueError) as e:
      logging.info('Outputs of %s at step %s: %s', pname, step, e)
  return metric_accumulator.broadcast_from_first_process(num_outputs) > 0


def get_filename(step: jax.Array | int, prefix: str) -> str:
  """Returns the name of the outputs of a step by this process, no suffix."""
  step = int(py_utils.maybe_unreplicate_for_fully_replicated(step))
  return f'{prefix}_out_{step}_shard_{jax.process_index()}'


def safe_write_key_value_pairs(
  filename: PathLike,
  key_value_pairs: io_utils.KeyValuePairs,
  cast_to_ndarray: bool = True,
  write_pickle: bool = True,
) -> None:
  """Writes pairs as `io_utils.write_key_value_pairs`.

  Values that cannot be written are a warning.

  Args:
    filename: Path without suffix.
    key_value_pairs: A key, or None, and the outputs of each example.
    cast_to_ndarray: Whether jax.Arrays are written as numpy arrays.
    write_pickle: Whether to write the `.npz`.
  """
  try:
    io_utils.write_key_value_pairs(
      filename, key_value_pairs, cast_to_ndarray, write_pickle
    )
  except TypeError as e:
    logging.warning('%s is incomplete: %s', filename, e)


def maybe_write_eval_outputs(
  mode: io_utils.EvaluationMode,
  output_dir: PathLike,
  step: int,
  eval_outputs: Any,
  write_pickle: bool = True,
) -> None:
  """Writes the outputs of each example, in the first process only.

  Writes nothing if the flag `pax_only_aggregate_summaries` of absl is set.

  Args:
    mode: Kind of the outputs.
    output_dir: The directory of the outputs of an input.
    step: Training step of the state.
    eval_outputs: A key, or None, and the outputs of each example.
    write_pickle: Whether to write the `.npz`.
  """
  if jax.process_index() != 0 or writes_only_aggregates():
    return
  file = pathlib.Path(output_dir) / get_filename(step, mode.value)
  safe_write_key_value_pairs(file, eval_outputs, write_pickle=write_pickle)


def writes_only_aggregates() -> bool:
  """Returns whether the flag `pax_only_aggregate_summaries` of absl is set."""
  values = flags.FLAGS
  return _AGGREGATES_FLAG in values and bool(values[_AGGREGATES_FLAG].value)
