# SPDX-License-Identifier: Apache-2.0
"""Files that evaluation, decoding and inference write into the job directory.

eval_out/<input>/eval_out_<step>_shard_<process>.{jsonl,npz}
decoder_out/<input>/decoder_out_<step>_shard_<process>.{jsonl,npz}
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pax import tasks_lib
from pax.checkpoints import reading
from pax.files import (
  atomic_file,
  npz_trees,
  side_files,
  storage,
  tf_records,
  working_copy,
)

OutputFormatType = tasks_lib.OutputFormatType
PathLike = str | os.PathLike[str]
# (key or None, outputs) of each example.
KeyValuePairs = Sequence[tuple[str | None, Any]]

_ARTIFACTS = '_internal_artifacts'
_TRAINING_END = '_training_end.json'
_INTERRUPTED = '_interrupted_evaluation.json'
_STEP = 'restore_checkpoint_step'
_FINGERPRINT = 'fingerprint'


class EvaluationMode(enum.StrEnum):
  """Kind of a job on checkpoints; the prefix of its output files."""

  EVAL = 'eval'
  DECODE = 'decoder'
  INFER = 'infer'

  @property
  def progress_filename(self) -> str:
    """Name of the file that holds the step being evaluated."""
    return f'_{self.value}_progress.json'


class JnpEncoder(json.JSONEncoder):
  """Encodes arrays as lists and numpy scalars as numbers."""

  def default(self, o: Any) -> Any:
    # Also tensors of TensorFlow.
    if hasattr(o, '__array__'):
      return np.asarray(o).tolist()
    if isinstance(o, bytes):
      return o.decode('utf-8', errors='replace')
    if dataclasses.is_dataclass(o) and not isinstance(o, type):
      return dataclasses.asdict(o)
    return super().default(o)


def output_file(
  job_log_dir: PathLike, mode: EvaluationMode, name: str, step: int
) -> pathlib.Path:
  """Returns the path of the outputs of a step, without suffix.

  Args:
    job_log_dir: The job directory.
    mode: Kind of the outputs.
    name: Name of the input.
    step: Training step of the state.
  """
  folder = pathlib.Path(job_log_dir) / f'{mode}_out' / name
  return folder / f'{mode}_out_{int(step)}_shard_{jax.process_index()}'


def write_key_value_pairs(
  filename: PathLike,
  key_value_pairs: KeyValuePairs,
  cast_to_ndarray: bool = True,
  write_pickle: bool = True,
) -> None:
  """Writes the values as `.jsonl`, one per line, and all pairs as `.npz`.

  The `.npz` has arrays with their dtypes (`npz_trees`); upstream writes a
  `.pickle`, which runs code when it is read. Each file is complete or absent;
  the `.jsonl` is written last.

  Args:
    filename: Path without suffix; its folder and the parent of that are
      created.
    key_value_pairs: A key, or None, and the outputs of each example.
    cast_to_ndarray: Whether jax.Arrays are written as numpy arrays.
    write_pickle: Whether to write the `.npz`; the name is upstream's.
  """
  filename = pathlib.Path(filename)
  folder = filename.absolute().parent
  side_files.make_directories(
    folder.parent.parent, folder.parent.name, folder.name
  )
  if cast_to_ndarray:
    key_value_pairs = jax.tree.map(_to_numpy, list(key_value_pairs))
  if write_pickle:
    with atomic_file.open_atomic(filename.with_suffix('.npz')) as file:
      npz_trees.save(file, list(key_value_pairs))
  with atomic_file.open_atomic(filename.with_suffix('.jsonl')) as file:
    for _, value in key_value_pairs:
      file.write(f'{json.dumps(value, cls=JnpEncoder)}\n'.encode())


def load_outputs(
  basedir: PathLike, pname: str, fname_prefix: str, step: int | None = None
) -> list[Any]:
  """Returns the pairs that `write_key_value_pairs` wrote, of all processes.

  Args:
    basedir: The job directory.
    pname: Name of the input.
    fname_prefix: 'eval' or 'decoder'.
    step: The step; None if there are outputs of only one.

  Raises:
    ValueError: There are no outputs of the step, shards are missing or damaged,
      or a version that wrote pickle files has written them.
  """
  folder = pathlib.Path(basedir) / f'{fname_prefix}_out' / pname
  by_step = _shards_by_step(folder, fname_prefix, 'npz')
  if step is None and len(by_step) == 1:
    (step,) = by_step
  if step not in by_step:
    pickled = _shards_by_step(folder, fname_prefix, 'pickle')
    if step in pickled or (pickled and not by_step):
      raise ValueError(
        f'the outputs of steps {sorted(pickled)} in {folder} are pickle files'
        ' of an older version, which run code when they are read; read the'
        ' .jsonl files there, or write them again with this version'
      )
    raise ValueError(
      f'step must be one of {sorted(by_step)}, the steps with outputs in'
      f' {folder}, got {step}'
    )
  shards = by_step[step]
  if missing := set(range(max(shards) + 1)) - shards.keys():
    raise ValueError(f'shards {sorted(missing)} of step {step} are missing')
  pairs = []
  for index in sorted(shards):
    pairs += npz_trees.load(shards[index])
  return pairs


def _shards_by_step(
  folder: pathlib.Path, fname_prefix: str, suffix: str
) -> dict[int, dict[int, pathlib.Path]]:
  """Returns the files of outputs by step and process."""
  pattern = re.compile(rf'{fname_prefix}_out_(\d+)_shard_(\d+)\.{suffix}')
  by_step: dict[int, dict[int, pathlib.Path]] = {}
  for file in folder.glob(f'*.{suffix}'):
    if match := pattern.fullmatch(file.name):
      by_step.setdefault(int(match[1]), {})[int(match[2])] = file
  return by_step


@contextlib.contextmanager
def checkpoint_progress(
  job_log_dir: PathLike,
  checkpoint_step: int,
  mode: EvaluationMode,
  fingerprint: str = '',
) -> Iterator[None]:
  """Records a checkpoint as unfinished until the block completes.

  A preempted job starts with that checkpoint again and keeps the record, whose
  modification time is the start of the first attempt.

  Args:
    job_log_dir: The job directory.
    checkpoint_step: The step.
    mode: Kind of the job.
    fingerprint: Of what outputs depend on besides the step; a job of another
      one does not keep the record.
  """
  if jax.process_index():
    yield
    return
  file = _progress_file(job_log_dir, mode)
  record: dict[str, int | str] = {
    _STEP: int(checkpoint_step),
    _FINGERPRINT: fingerprint,
  }
  if side_files.read_json(file, lambda found: found) != record:
    _write_record(file, record)
  yield
  working_copy.upload(job_log_dir)
  with side_files.tolerate_errors(file):
    file.unlink(missing_ok=True)


def get_checkpoint_step(
  job_log_dir: PathLike,
  restore_checkpoint_dir: PathLike,
  mode: EvaluationMode,
  checkpoint_type: Any = None,
) -> int:
  """Returns the step to start with: an unfinished one, or the newest.

  Args:
    job_log_dir: The job directory.
    restore_checkpoint_dir: The directory of the checkpoints.
    mode: Kind of the job.
    checkpoint_type: Unused; the type is read from the checkpoint.

  Raises:
    CheckpointError: There is no checkpoint.
  """
  del checkpoint_type
  unfinished = unfinished_step(job_log_dir, mode)
  if unfinished in reading.checkpoint_steps(restore_checkpoint_dir):
    return unfinished
  return reading.find_checkpoint(restore_checkpoint_dir)[0]


def unfinished_step(job_log_dir: PathLike, mode: EvaluationMode) -> int | None:
  """Returns the step whose `checkpoint_progress` did not complete."""
  file = _progress_file(job_log_dir, mode)
  return side_files.read_json(file, lambda record: _step_of(record, _STEP))


def is_written_since_start(
  job_log_dir: PathLike,
  mode: EvaluationMode,
  last_file: pathlib.Path,
  step: int,
) -> bool:
  """Returns whether a preempted job completed outputs of an unfinished step.

  Args:
    job_log_dir: The job directory.
    mode: Kind of the job.
    last_file: The file of these outputs that is written last.
    step: The step.
  """
  if unfinished_step(job_log_dir, mode) != step:
    return False
  start = _progress_file(job_log_dir, mode).stat().st_mtime_ns
  return last_file.exists() and last_file.stat().st_mtime_ns >= start


def record_training_end(job_log_dir: PathLike, step: int) -> None:
  """Records that no checkpoint follows the one of `step`."""
  if jax.process_index() == 0:
    _write_record(_training_end_file(job_log_dir), {'step': int(step)})


def clear_training_end(job_log_dir: PathLike) -> None:
  """Deletes the record of `record_training_end`: training continues."""
  if jax.process_index() == 0:
    file = _training_end_file(job_log_dir)
    with side_files.tolerate_errors(file):
      if file.parent.is_file():
        side_files.set_aside(file.parent, 'it is not a directory')
      if file.is_dir():
        side_files.set_aside(file, 'it is not a regular file')
      file.unlink(missing_ok=True)


def training_end(job_log_dir: PathLike) -> int | None:
  """Returns the step at which training ended early; None if it did not."""
  file = _training_end_file(job_log_dir)
  if not file.exists():
    return None
  step = side_files.read_json(file, lambda record: _step_of(record, 'step'))
  if step is None:
    # Damaged; that it existed means that no checkpoint follows the newest.
    step = max(reading.checkpoint_steps(job_log_dir), default=None)
    if step is not None:
      record_training_end(job_log_dir, step)
  return step


def record_interrupted_evaluation(job_log_dir: PathLike, step: int) -> None:
  """Records that a stop of training interrupted the evaluation at `step`."""
  if jax.process_index() == 0:
    _write_record(_interrupted_file(job_log_dir), {'step': int(step)})


def clear_interrupted_evaluation(job_log_dir: PathLike) -> None:
  """Deletes the record of `record_interrupted_evaluation`."""
  if jax.process_index() == 0:
    file = _interrupted_file(job_log_dir)
    with side_files.tolerate_errors(file):
      file.unlink(missing_ok=True)


def interrupted_evaluation(job_log_dir: PathLike) -> int | None:
  """Returns the step of an evaluation that training has to repeat, or None."""
  file = _interrupted_file(job_log_dir)
  return side_files.read_json(file, lambda record: _step_of(record, 'step'))


class ShardedParallelWriter:
  """Distributes chunks of records over `<name>.tfrecord-00000-of-00032` etc.

  The files have their names once they are complete.
  """

  def __init__(
    self,
    fq_filename: PathLike,
    num_shards: int,
    output_format: OutputFormatType = OutputFormatType.TFRECORD,
  ):
    """Opens the shards; they replace files of the same names.

    Args:
      fq_filename: Path without suffix; its folder exists.
      num_shards: Number of files.
      output_format: Format of the records; its name is the suffix.

    Raises:
      ValueError: `num_shards` is less than 1.
    """
    if num_shards < 1:
      raise ValueError(
        f'output_num_shards must be at least 1, got {num_shards}'
      )
    suffix = output_format.name.lower()
    self._files = [
      atomic_file.AtomicFile(
        f'{fq_filename}.{suffix}-{i:05d}-of-{num_shards:05d}'
      )
      for i in range(num_shards)
    ]
    self._next = 0

  def write(self, chunk: Sequence[bytes]) -> None:
    """Writes the records of a chunk to the next shard, round-robin."""
    tf_records.write(self._files[self._next].file, chunk)
    self._next = (self._next + 1) % len(self._files)

  def close(self) -> None:
    """Completes the files."""
    for file in self._files:
      file.commit()

  def discard(self) -> None:
    """Deletes the files."""
    for file in self._files:
      file.discard()


def _progress_file(job_log_dir: PathLike, mode: EvaluationMode) -> storage.Path:
  return working_copy.origin(job_log_dir) / _ARTIFACTS / mode.progress_filename


def _training_end_file(job_log_dir: PathLike) -> storage.Path:
  return working_copy.origin(job_log_dir) / _ARTIFACTS / _TRAINING_END


def _interrupted_file(job_log_dir: PathLike) -> storage.Path:
  return working_copy.origin(job_log_dir) / _ARTIFACTS / _INTERRUPTED


def _write_record(file: storage.Path, record: Mapping[str, int | str]) -> None:
  with side_files.tolerate_errors(file):
    side_files.make_directories(file.parent.parent, file.parent.name)
    side_files.write_text(file, json.dumps(record))


def _step_of(record: Any, field: str) -> int:
  side_files.check_fields(record, {field: int})
  return record[field]


def _to_numpy(x: Any) -> Any:
  return np.asarray(x) if isinstance(x, jax.Array) else x
