# SPDX-License-Identifier: Apache-2.0
"""Inference: what a task's runner makes of each example, as records."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from pax import (
  base_inference_runner,
  io_utils,
  partitioning,
  summaries,
  tf_records,
  train_states,
)
from pax.programs import metric_accumulator, program
from pax.programs import preemption as interrupts_lib
from pax.programs.run import Outcome
from praxis import base_input

_OUTPUT = 'output'
_FEATURES, _METADATA = 'features.json', 'metadata.json'
_MODE = io_utils.EvaluationMode.INFER


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferJob:
  """Runs the inference runner on all inputs, from one checkpoint."""

  job_log_dir: str
  # The task on its devices.
  partitioner: partitioning.Partitioner
  # What computes the outputs.
  runner: base_inference_runner.BaseInferenceRunner
  # What it is run on, and the directory that it comes from.
  state: train_states.TrainState
  checkpoint: str
  inputs: Sequence[base_input.BaseInput]
  progress: summaries.Progress
  interrupts: interrupts_lib.Interrupts

  def run(self) -> Outcome:
    """Writes `output/<input>/output.tfrecord-xxxxx-of-yyyyy`, and what it is.

    `features.json` says which outputs an example has, `metadata.json` where
    they come from; that is written last. A job that is stopped leaves whole
    outputs of inputs or none, and the next one goes on with the others.
    """
    step = int(self.state.step)
    undone = io_utils.undone_step(self.job_log_dir, _MODE)
    try:
      with io_utils.checkpoint_progress(self.job_log_dir, step, _MODE):
        for index, inp in enumerate(self.inputs):
          if self._is_done(inp, step, undone):
            self.progress.print(f'infer {inp.name}: written before')
          else:
            self._infer(inp, index)
    except interrupts_lib.StoppedError:
      return Outcome.PREEMPTED
    finally:
      self.progress.close()
    return Outcome.DONE

  def _infer(self, inp: base_input.BaseInput, index: int) -> None:
    folder = self._folder(inp)
    count = 0
    with self._writing(inp) as write:
      for rows in self._rows(inp, index):
        count += len(jax.tree.leaves(rows)[0])
        write(rows)
    self.progress.print(f'inferred {inp.name}: {count} examples in {folder}')

  def _folder(self, inp: base_input.BaseInput) -> pathlib.Path:
    return pathlib.Path(self.job_log_dir) / _OUTPUT / inp.name

  def _is_done(
    self, inp: base_input.BaseInput, step: int, undone: int | None
  ) -> bool:
    """Whether a job that was stopped had written the outputs of the input."""
    written = undone == step and io_utils.is_written_since_undone(
      self.job_log_dir, _MODE, self._folder(inp) / _METADATA, step
    )
    return bool(metric_accumulator.agreed(int(written)))

  @contextlib.contextmanager
  def _writing(
    self, inp: base_input.BaseInput
  ) -> Iterator[Callable[[Any], None]]:
    """Gives what takes rows; their files are complete at the end, or gone."""
    if jax.process_index():
      yield lambda rows: None
      return
    folder, settings = self._folder(inp), self.partitioner.task.infer_writer
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _METADATA).unlink(missing_ok=True)
    writer = io_utils.ShardedParallelWriter(
      folder / _OUTPUT, settings.output_num_shards, settings.output_format
    )
    try:
      yield lambda rows: writer.write(self.runner.serialize_outputs(rows))
    except BaseException:
      writer.discard()
      raise
    writer.close()
    self._describe(folder, inp.name)

  def _rows(self, inp: base_input.BaseInput, index: int) -> Iterator[Any]:
    """The outputs for each batch, on the host."""
    key = jax.random.key(self.partitioner.task.infer.random_seed)
    key = jax.random.fold_in(key, index)

    def before_batch(done: int) -> None:
      self.interrupts.check_batch()
      self.progress.batches(f'infer {inp.name}', done)

    for count, batch in enumerate(program.batches(inp, before_batch)):
      batch = self.partitioner.put_batch(batch)
      step = self.partitioner.infer_step_for(batch)
      rows = step(self.state, batch, jax.random.fold_in(key, count))
      yield metric_accumulator.on_host(rows)

  def _describe(self, folder: pathlib.Path, name: str) -> None:
    schema = tf_records.flat(self.runner.output_schema)
    features = {
      key: {'shape': list(leaf.shape), 'dtype': _dtype_name(leaf)}
      for key, leaf in schema.items()
    }
    metadata = {
      'restore_checkpoint_dir': self.checkpoint,
      'restore_checkpoint_step': int(self.state.step),
      'input_name': name,
      'model_name': self.partitioner.task.model.name,
    }
    for file, content in ((_FEATURES, features), (_METADATA, metadata)):
      (folder / file).write_text(json.dumps(content, indent=2))


def _dtype_name(leaf: Any) -> str:
  dtype = getattr(leaf, 'np_dtype', leaf.dtype)
  return np.dtype(dtype).name
