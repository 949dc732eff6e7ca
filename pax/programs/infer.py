# SPDX-License-Identifier: Apache-2.0
"""Inference: what a task's runner makes of each example, as records."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Sequence
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
from pax.programs import collecting, program
from pax.programs import interrupts as interrupts_lib
from pax.programs.run import Outcome
from praxis import base_input

_OUTPUT = 'output'


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
    they come from.
    """
    try:
      for index, inp in enumerate(self.inputs):
        self._infer(inp, index)
    except interrupts_lib.StoppedError:
      return Outcome.PREEMPTED
    finally:
      self.progress.close()
    return Outcome.DONE

  def _infer(self, inp: base_input.BaseInput, index: int) -> None:
    task = self.partitioner.task
    folder = pathlib.Path(self.job_log_dir) / _OUTPUT / inp.name
    is_first = jax.process_index() == 0
    if is_first:
      self._describe(folder, inp.name)
      settings = task.infer_writer
      writer = io_utils.ShardedParallelWriter(
        folder / _OUTPUT, settings.output_num_shards, settings.output_format
      )
    count = 0
    for rows in self._rows(inp, index):
      count += len(jax.tree.leaves(rows)[0])
      if is_first:
        writer.write(self.runner.serialize_outputs(rows))
    if is_first:
      writer.close()
    self.progress.print(f'inferred {inp.name}: {count} examples in {folder}')

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
      yield collecting.on_host(rows)

  def _describe(self, folder: pathlib.Path, name: str) -> None:
    task = self.partitioner.task
    folder.mkdir(parents=True, exist_ok=True)
    schema = tf_records.flat(self.runner.output_schema)
    features = {
      key: {'shape': list(leaf.shape), 'dtype': _dtype_name(leaf)}
      for key, leaf in schema.items()
    }
    metadata = {
      'restore_checkpoint_dir': self.checkpoint,
      'restore_checkpoint_step': int(self.state.step),
      'input_name': name,
      'model_name': task.model.name,
    }
    for file, content in (('features', features), ('metadata', metadata)):
      text = json.dumps(content, indent=2)
      (folder / f'{file}.json').write_text(text)


def _dtype_name(leaf: Any) -> str:
  dtype = getattr(leaf, 'np_dtype', leaf.dtype)
  return np.dtype(dtype).name
