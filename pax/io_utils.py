# SPDX-License-Identifier: Apache-2.0
"""Files that evaluation, decoding and inference write into the job directory.

eval_out/<input>/eval_out_<step>_shard_<process>.{jsonl,pickle}
decoder_out/<input>/decoder_out_<step>_shard_<process>.{jsonl,pickle}
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import os
import pathlib
import pickle
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from pax import atomic_file, tasks_lib, tf_records
from pax.checkpoints import reading

OutputFormatType = tasks_lib.OutputFormatType
PathLike = str | os.PathLike[str]
KeyValuePairs = Sequence[tuple[str | None, Any]]

_ARTIFACTS = '_internal_artifacts'
_TRAINING_END = '_training_end.json'
_STEP = 'restore_checkpoint_step'


class EvaluationMode(enum.StrEnum):
  """What a job does with checkpoints; begins the names of its files."""

  EVAL = 'eval'
  DECODE = 'decoder'
  INFER = 'infer'

  @property
  def progress_filename(self) -> str:
    """Name of the file that tells which checkpoint is at work."""
    return f'_{self.value}_progress.json'


class JnpEncoder(json.JSONEncoder):
  """Encodes arrays as lists, and numpy's numbers as numbers."""

  def default(self, o: Any) -> Any:
    if isinstance(o, jax.Array | np.ndarray | np.generic):
      return np.asarray(o).tolist()
    if isinstance(o, bytes):
      return o.decode('utf-8', errors='replace')
    if dataclasses.is_dataclass(o) and not isinstance(o, type):
      return dataclasses.asdict(o)
    return super().default(o)


def output_file(
  job_log_dir: PathLike, mode: EvaluationMode, name: str, step: int
) -> pathlib.Path:
  """Where the outputs of a step go; `.jsonl` or `.pickle` is to be added."""
  folder = pathlib.Path(job_log_dir) / f'{mode}_out' / name
  return folder / f'{mode}_out_{int(step)}_shard_{jax.process_index()}'


def write_key_value_pairs(
  filename: PathLike,
  key_value_pairs: KeyValuePairs,
  cast_to_ndarray: bool = True,
  write_pickle: bool = True,
) -> None:
  """Writes the values as `.jsonl`, a line each, and all pairs as `.pickle`.

  Each file is complete or absent.

  Args:
    filename: Without suffix; its folder is made.
    key_value_pairs: A key, or None, and the outputs of each example.
    cast_to_ndarray: Whether arrays of JAX are written as numpy's.
    write_pickle: Whether there is a `.pickle`.
  """
  filename = pathlib.Path(filename)
  if cast_to_ndarray:
    key_value_pairs = jax.tree.map(_to_numpy, list(key_value_pairs))
  if write_pickle:
    with atomic_file.open_atomic(filename.with_suffix('.pickle')) as file:
      pickle.dump(key_value_pairs, file, protocol=pickle.HIGHEST_PROTOCOL)
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
    step: Which step; None if there is only one.

  Raises:
    ValueError: there are no such files, of several steps, or some are missing.
  """
  folder = pathlib.Path(basedir) / f'{fname_prefix}_out' / pname
  pattern = re.compile(rf'{fname_prefix}_out_(\d+)_shard_(\d+)\.pickle')
  by_step: dict[int, dict[int, pathlib.Path]] = {}
  for file in folder.glob('*.pickle'):
    if match := pattern.fullmatch(file.name):
      by_step.setdefault(int(match[1]), {})[int(match[2])] = file
  if step is None and len(by_step) == 1:
    (step,) = by_step
  if step not in by_step:
    raise ValueError(
      f'step must be one of {sorted(by_step)}, of which there are outputs in'
      f' {folder}, got {step}'
    )
  shards = by_step[step]
  if missing := set(range(max(shards) + 1)) - shards.keys():
    raise ValueError(f'shards {sorted(missing)} of step {step} are missing')
  pairs = []
  for index in sorted(shards):
    pairs += pickle.loads(shards[index].read_bytes())
  return pairs


@contextlib.contextmanager
def checkpoint_progress(
  job_log_dir: PathLike, checkpoint_step: int, mode: EvaluationMode
) -> Iterator[None]:
  """Notes which checkpoint is at work; the note goes when that is done.

  A job that is stopped meanwhile begins with that checkpoint again; the note of
  its first attempt stays.
  """
  if jax.process_index():
    yield
    return
  file = _progress_file(job_log_dir, mode)
  if undone_step(job_log_dir, mode) != int(checkpoint_step):
    atomic_file.write_text(file, json.dumps({_STEP: int(checkpoint_step)}))
  yield
  file.unlink(missing_ok=True)


def get_checkpoint_step(
  job_log_dir: PathLike,
  restore_checkpoint_dir: PathLike,
  mode: EvaluationMode,
  checkpoint_type: Any = None,
) -> int:
  """Returns the step to begin with: one that was left undone, or the newest.

  Raises:
    CheckpointError: there is no checkpoint.
  """
  del checkpoint_type  # A checkpoint tells what it is.
  undone = undone_step(job_log_dir, mode)
  if undone in reading.checkpoint_steps(restore_checkpoint_dir):
    return undone
  return reading.find(restore_checkpoint_dir)[0]


def undone_step(job_log_dir: PathLike, mode: EvaluationMode) -> int | None:
  """Returns the step of `checkpoint_progress` that did not come to its end."""
  file = _progress_file(job_log_dir, mode)
  return json.loads(file.read_text())[_STEP] if file.exists() else None


def is_written_since_undone(
  job_log_dir: PathLike,
  mode: EvaluationMode,
  written: pathlib.Path,
  step: int,
) -> bool:
  """Whether a job was done with outputs of a step when it was stopped in that.

  Args:
    job_log_dir: The job directory.
    mode: What the job does.
    written: The file of these outputs that is written last.
    step: The step.
  """
  if undone_step(job_log_dir, mode) != step:
    return False
  began = _progress_file(job_log_dir, mode).stat().st_mtime_ns
  return written.exists() and written.stat().st_mtime_ns >= began


def note_training_end(job_log_dir: PathLike, step: int) -> None:
  """Notes that there will be no checkpoint after `step`."""
  if jax.process_index() == 0:
    file = _training_end_file(job_log_dir)
    atomic_file.write_text(file, json.dumps({'step': int(step)}))


def forget_training_end(job_log_dir: PathLike) -> None:
  """Takes `note_training_end` back: training goes on."""
  if jax.process_index() == 0:
    _training_end_file(job_log_dir).unlink(missing_ok=True)


def training_end(job_log_dir: PathLike) -> int | None:
  """Returns the step that training ended with; None while it goes on."""
  file = _training_end_file(job_log_dir)
  return json.loads(file.read_text())['step'] if file.exists() else None


class ShardedParallelWriter:
  """Deals chunks of records out to files `<name>.tfrecord-00000-of-00032`.

  They have their names when they are complete.
  """

  def __init__(
    self,
    fq_filename: PathLike,
    num_shards: int,
    output_format: OutputFormatType = OutputFormatType.TFRECORD,
  ):
    """Begins the files; they take the place of others of these names."""
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
    """Writes the records of a chunk to one file, the next to the next."""
    tf_records.write(self._files[self._next].file, chunk)
    self._next = (self._next + 1) % len(self._files)

  def close(self) -> None:
    """Completes the files."""
    for file in self._files:
      file.commit()

  def discard(self) -> None:
    """Takes what was written away."""
    for file in self._files:
      file.discard()


def _progress_file(job_log_dir: PathLike, mode: EvaluationMode) -> pathlib.Path:
  return pathlib.Path(job_log_dir) / _ARTIFACTS / mode.progress_filename


def _training_end_file(job_log_dir: PathLike) -> pathlib.Path:
  return pathlib.Path(job_log_dir) / _ARTIFACTS / _TRAINING_END


def _to_numpy(x: Any) -> Any:
  return np.asarray(x) if isinstance(x, jax.Array) else x
