# SPDX-License-Identifier: Apache-2.0
"""One pass of decoding over an input."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from absl import logging

from pax import (
  base_metrics,
  io_utils,
  partitioning,
  summaries,
  tasks_lib,
  xla_passthrough,
)
from pax.programs import metric_accumulator, program
from pax.steps import StepOutput
from praxis import base_input, pytypes

NestedMap = pytypes.NestedMap
DecodeProgramOutput = program.DecodeProgramOutput
TrainState = program.TrainState
Pairs = Mapping[str, tuple[Any, Any]]

# Before the names of metrics in summaries.
_DECODE = 'decode_metrics/'
_PROCESS = 'process_decode_metrics/'


class SingleTaskDecodeProgram(program.InputProgram):
  """Decodes an input, with a step that is compiled at the first batch."""

  @property
  def decode_input(self) -> base_input.BaseInput:
    """The input."""
    return self.input

  def setup(
    self,
    task: tasks_lib.SingleTask,
    partitioner: partitioning.Partitioner,
    job_log_dir: str | pathlib.Path,
    decode_prng_seed: jax.Array,
    output_pickle: bool = True,
    enable_summary_writer: bool = True,
  ) -> None:
    """Makes the input; to be called once, before `run`.

    Args:
      task: What decodes.
      partitioner: The task on its devices.
      job_log_dir: Where `decoder_out` is.
      decode_prng_seed: The key of all randomness.
      output_pickle: Whether outputs are written as `.pickle` too.
      enable_summary_writer: Whether the job writes summaries; it does, of what
        `run` returns.
    """
    del enable_summary_writer
    self._set_up(task, partitioner, job_log_dir, decode_prng_seed)
    self._output_pickle = output_pickle

  def should_run(self, state: TrainState, train_step: int) -> bool:
    """Always; the job knows the intervals."""
    return super().should_run(state, train_step)

  def run(self, state: TrainState, train_step: int) -> DecodeProgramOutput:
    """Decodes; writes what the model makes of each example."""
    found = _Decoded(self._task)
    profiler = program.step_profiler(self._task.decode, self._job_log_dir)
    for batch in program.batches(self.input, self.before_batch):
      profiler.step(found.count + 1)
      batch, kept, _ = xla_passthrough.split_out_xla_unsupported_batch(batch)
      inputs = self._partitioner.put_batch(batch)
      key = self._batch_key(found.count)
      output = self.decode_step(state, key, inputs, self._static_args)
      found.add(output, kept, self.input)
    profiler.close()
    self._reset_if_done(found.count)
    if jax.process_index() == 0 and found.count:
      file = io_utils.output_file(
        self._job_log_dir,
        io_utils.EvaluationMode.DECODE,
        self.input.name,
        train_step,
      )
      io_utils.write_key_value_pairs(
        file, found.outputs, write_pickle=self._output_pickle
      )
    return found.result(state)

  def decode_step(
    self,
    state: TrainState,
    prng_key: jax.Array,
    inputs: NestedMap,
    static_args: program.BaseStepFnStaticArgs,
  ) -> StepOutput:
    """Returns what the model decodes from a batch that is on the devices."""
    return self._partitioner.decode_step_for(inputs)(state, inputs, prng_key)

  def _batch_key(self, done: int) -> jax.Array:
    if not self._task.decode.prng_key_fold_with_batch_index:
      return self._key
    return jax.random.fold_in(self._key, done + 1)

  def _reset_if_done(self, count: int) -> None:
    """Goes back to the first batch where the data, or the pass, ended."""
    wanted = self.input.eval_loop_num_batches
    if self.input.reset_for_eval or count != wanted:
      self.input.reset()
    if not count:
      logging.warning('Decode input %r gave no batch', self.input.name)


class _Decoded:
  """What was decoded so far; each batch is processed on the host."""

  def __init__(self, task: tasks_lib.SingleTask):
    self._task = task
    self._summaries = metric_accumulator.WeightedMeans()
    self._metrics: list[Pairs] = []
    self._processed: list[Pairs] = []
    self.outputs: list[tuple[str | None, Any]] = []
    self.count = 0

  def add(
    self, output: StepOutput, kept: NestedMap, inp: base_input.BaseInput
  ) -> None:
    self.count += 1
    self._metrics.append(jax.device_get(output.weighted_scalars))
    rows = NestedMap(metric_accumulator.on_host(output.per_example_out))
    xla_passthrough.merge_back_xla_unsupported_batch(rows, kept)
    if jax.process_index():
      return
    # What follows is not written for devices.
    with jax.default_device(jax.local_devices(backend='cpu')[0]):
      scalars, outputs, *_ = self._task.model.process_decode_out(inp, rows)
    self._processed.append(jax.tree.map(np.asarray, scalars))
    self.outputs += outputs or []

  def result(self, state: TrainState) -> DecodeProgramOutput:
    decoded = self._aggregated(self._metrics)
    processed = self._aggregated(self._processed)
    return DecodeProgramOutput(
      state,
      decode_metrics=_values(decoded),
      processed_decode_metrics=_values(processed),
      num_decode_steps=self.count,
      scalars={
        **summaries.tags.weighted_scalars(decoded, _DECODE),
        **summaries.tags.weighted_scalars(processed, _PROCESS),
      },
    )

  def _aggregated(self, by_batch: list[Pairs]) -> dict[str, Any]:
    """The metrics over all batches, by those of `task.metrics` that fit."""
    if not by_batch or not by_batch[0]:
      return {}
    aggregator: base_metrics.BaseMetrics = self._task.metrics_aggregator
    return jax.tree.map(float, dict(aggregator.aggregate(by_batch)))


def _values(pairs: Pairs) -> dict[str, float]:
  return {name: float(value) for name, (value, _) in pairs.items()}
