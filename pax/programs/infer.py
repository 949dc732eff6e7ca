# SPDX-License-Identifier: Apache-2.0
"""The inference job: writes the outputs of each example as records."""

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
  train_states,
  xla_passthrough,
)
from pax.files import atomic_file, side_files, tf_records, working_copy
from pax.programs import eval_batches, metric_accumulator, program
from pax.programs.jobs import Outcome
from pax.programs.stopping.preemption import PreemptedError, PreemptionHandler
from praxis import base_input, pytypes

NestedMap = pytypes.NestedMap

_OUTPUT = 'output'
_FEATURES, _METADATA = 'features.json', 'metadata.json'
_MODE = io_utils.EvaluationMode.INFER


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferJob:
  """Runs the inference runner of a task on all inputs, from one checkpoint."""

  job_log_dir: str
  # The task on its mesh.
  partitioner: partitioning.Partitioner
  # Computes and serializes the outputs.
  runner: base_inference_runner.BaseInferenceRunner
  # The eval state, and the checkpoint directory it was restored from.
  state: train_states.TrainState
  checkpoint: str
  inputs: Sequence[base_input.BaseInput]
  # Of the checkpoints and the configuration.
  fingerprint: str = ''
  progress: summaries.Progress
  preemption: PreemptionHandler
  _common_end: eval_batches.CommonEnd = dataclasses.field(
    default_factory=eval_batches.CommonEnd, init=False, repr=False
  )

  def __post_init__(self) -> None:
    # Outputs of equal names would replace each other.
    program.check_unique_names(self.inputs)

  def run(self) -> Outcome:
    """Writes `output/<input>/output.tfrecord-xxxxx-of-yyyyy` for each input.

    `features.json` has shape and dtype of each output, `metadata.json`, written
    last, the checkpoint and the input. A preempted job leaves complete outputs
    of an input or none; the next job continues with the other inputs.
    """
    step = int(self.state.step)
    unfinished = io_utils.unfinished_step(self.job_log_dir, _MODE)
    try:
      with io_utils.checkpoint_progress(
        self.job_log_dir, step, _MODE, self.fingerprint
      ):
        for index, inp in enumerate(self.inputs):
          if self._is_done(inp, step, unfinished):
            self.progress.print(f'infer {inp.name}: written before')
          else:
            self._infer(inp, index)
    except PreemptedError:
      return Outcome.PREEMPTED
    finally:
      self.progress.close()
    return Outcome.DONE

  def _infer(self, inp: base_input.BaseInput, index: int) -> None:
    folder = self._folder(inp)
    num_examples = 0
    with self._open_writer(inp) as write:
      for rows in self._infer_batches(inp, index):
        num_examples += write(rows)
    self.progress.print(
      f'inferred {inp.name}: {num_examples} examples in'
      f' {working_copy.origin(folder)}'
    )

  def _folder(self, inp: base_input.BaseInput) -> pathlib.Path:
    return pathlib.Path(self.job_log_dir) / _OUTPUT / inp.name

  def _is_done(
    self, inp: base_input.BaseInput, step: int, unfinished: int | None
  ) -> bool:
    """Returns whether a preempted job wrote the outputs of the input."""
    is_written = unfinished == step and io_utils.is_written_since_start(
      self.job_log_dir, _MODE, self._folder(inp) / _METADATA, step
    )
    return bool(
      metric_accumulator.broadcast_from_first_process(int(is_written))
    )

  @contextlib.contextmanager
  def _open_writer(
    self, inp: base_input.BaseInput
  ) -> Iterator[Callable[[NestedMap], int]]:
    """Yields a function that writes rows and returns the number of records.

    An exception deletes the files.
    """
    if jax.process_index():
      yield lambda rows: 0
      return
    folder, settings = self._folder(inp), self.partitioner.task.infer_settings
    side_files.make_directories(self.job_log_dir, _OUTPUT, inp.name)
    (folder / _METADATA).unlink(missing_ok=True)
    writer = io_utils.ShardedParallelWriter(
      folder / _OUTPUT, settings.output_num_shards, settings.output_format
    )

    def write(rows: NestedMap) -> int:
      records = self.runner.serialize_outputs(rows)
      writer.write(records)
      return len(records)

    try:
      yield write
    except BaseException:
      writer.discard()
      raise
    writer.close()
    # Records of an earlier job with another number of files would mix in.
    count = f'-of-{settings.output_num_shards:05d}'
    for file in folder.glob(f'{_OUTPUT}.*-of-{"[0-9]" * 5}'):
      if not file.name.endswith(count):
        file.unlink()
    self._write_metadata(folder, inp.name)

  def _infer_batches(
    self, inp: base_input.BaseInput, index: int
  ) -> Iterator[NestedMap]:
    """Yields the outputs of each batch as numpy arrays, without padding rows.

    Padding has an `eval_sample_weights` of 0. Strings of the batch, which
    devices cannot hold, are outputs if the schema has their names.
    """
    key = jax.random.key(self.partitioner.task.infer.random_seed)
    key = jax.random.fold_in(key, index)

    def before_batch(batch_index: int) -> None:
      self.preemption.raise_if_requested()
      self.progress.batches(f'infer {inp.name}', batch_index)

    for batch_index, host_batch in enumerate(
      eval_batches.iterate_batches(
        inp, before_batch, self.preemption.read, self._common_end, pads=False
      )
    ):
      numbers, host_inputs, _ = xla_passthrough.split_out_xla_unsupported_batch(
        host_batch
      )
      batch = self.partitioner.put_batch(numbers)
      step = self.partitioner.infer_step_for(batch)
      rows = step(self.state, batch, jax.random.fold_in(key, batch_index))
      rows, weights = metric_accumulator.gather_to_host(
        (rows, batch.get('eval_sample_weights'))
      )
      names = self.runner.output_schema.keys() & host_inputs.keys()
      rows = NestedMap({name: host_inputs[name] for name in names} | rows)
      if weights is None:
        yield rows
      elif np.any(weights > 0):
        yield _select(rows, weights > 0)

  def _write_metadata(self, folder: pathlib.Path, name: str) -> None:
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
      atomic_file.write_text(folder / file, json.dumps(content, indent=2))


def _select(rows: NestedMap, is_selected: np.ndarray) -> NestedMap:
  return jax.tree.map(lambda x: x[is_selected], rows)


def _dtype_name(leaf: Any) -> str:
  dtype = getattr(leaf, 'np_dtype', leaf.dtype)
  return np.dtype(dtype).name
