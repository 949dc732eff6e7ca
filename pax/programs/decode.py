# SPDX-License-Identifier: Apache-2.0
"""Decode programs: decoding of one input."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
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
from pax.inputs.seqio import outputs as seqio_outputs
from pax.programs import (
  eval_batches,
  metric_accumulator,
  output_files,
  program,
  seqio_results,
)
from pax.steps import Batch, StepOutput, WeightedScalars
from praxis import base_input, pytypes
from praxis.pytypes import Nested

NestedMap = pytypes.NestedMap
PartitionSpec = jax.sharding.PartitionSpec
DecodeProgramOutput = program.DecodeProgramOutput
TrainState = program.TrainState

# Prefixes of metrics in summaries.
_DECODE = 'decode_metrics/'
_PROCESS = 'process_decode_metrics/'


class SingleTaskDecodeProgram(program.InputProgram):
  """Decodes an input with a step that is compiled at its first batch."""

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
    """Builds the input; call it once, before `run`.

    Args:
      task: The task whose model decodes.
      partitioner: The partitioner of the task.
      job_log_dir: The directory of the job; outputs go to its `decoder_out`.
      decode_prng_seed: PRNG key of decoding.
      output_pickle: Whether outputs are also written as `.npz`; the name is
        upstream's.
      enable_summary_writer: Whether the program may write summaries; in a run
        of Pax the job writes those that `run` returns.
    """
    self._prng_key = decode_prng_seed
    self._set_up(
      task, partitioner, job_log_dir, decode_prng_seed, enable_summary_writer
    )
    self._output_pickle = output_pickle

  def should_run(self, state: TrainState, train_step: int) -> bool:
    """Returns True; the job applies the intervals."""
    return super().should_run(state, train_step)

  def run(self, state: TrainState, train_step: int) -> DecodeProgramOutput:
    """Decodes the input and writes the processed outputs of each example."""
    accumulator = _DecodeAccumulator(self._task)
    profiler = program.create_step_profiler(
      self._task.decode, self._job_log_dir
    )
    for host_batch in eval_batches.iterate_batches(
      self.input, self.before_batch, self.read_batch, self._common_end
    ):
      profiler.step(accumulator.num_batches + 1)
      batch, host_inputs = self._place(
        host_batch, self.decode_input_partition_spec(host_batch)
      )
      key = self._batch_key(accumulator.num_batches)
      step_output = self.decode_step(state, key, batch, self._static_args)
      accumulator.add(step_output, host_inputs, self.input)
    profiler.close()
    self._reset_input(accumulator.num_batches)
    output = accumulator.result(state)
    if accumulator.num_batches:
      results = self._process_examples(accumulator.outputs, train_step)
      if results is not None:
        output = dataclasses.replace(
          output,
          seqio_metrics=results.metrics,
          scalars={**output.scalars, **results.summaries},
        )
    if not self.is_reported:
      self._write_summaries(
        train_step, output.scalars, f'decode_test_{self.input.name}'
      )
    return output

  def headline_metrics(
    self, output: DecodeProgramOutput
  ) -> Mapping[str, float]:
    """Returns the metrics to print of an output of `run`."""
    return output.seqio_metrics or {}

  def decode_step(
    self,
    state: TrainState,
    prng_key: jax.Array,
    inputs: Batch,
    static_args: program.BaseStepFnStaticArgs,
  ) -> StepOutput:
    """Returns the output of `model.decode` on a batch.

    Args:
      state: The eval state.
      prng_key: PRNG key of the batch.
      inputs: The global batch on the devices.
      static_args: Arguments that are not traced.
    """
    decode_step, _ = self._get_decode_step(inputs)
    _, output = decode_step(state, prng_key, inputs, static_args)
    return output

  def decode_input_partition_spec(
    self, inputs: Batch
  ) -> Nested[PartitionSpec] | None:
    """Returns the specs of a batch; None without a mesh.

    `Partitioner.preprocess_inputs` receives them.
    """
    if program.overrides(self, SingleTaskDecodeProgram, '_get_decode_step'):
      return self._get_decode_step(inputs)[1]
    return self._partitioner.input_partition_specs(inputs)

  def _get_decode_step(
    self, inputs: Batch
  ) -> tuple[Callable[..., Any], Nested[PartitionSpec] | None]:
    """Returns the decode step and the specs of its batch.

    Subclasses may return those of `Partitioner.partition`.
    """
    step = program.eval_step_with_static_args(
      self._partitioner, self._partitioner.decode_step_for
    )
    spec = self._partitioner.input_partition_specs(inputs)
    return step, spec

  def _process_examples(
    self, outputs: list[tuple[str | None, NestedMap]], step: int
  ) -> seqio_results.SeqIOResults | None:
    """Writes the outputs of each example; returns metrics of a SeqIO task."""
    only_aggregates = output_files.writes_only_aggregates()
    results = seqio_results.compute_for_all_processes(
      self.input,
      outputs,
      seqio_results.MetricType.PREDICT,
      verbose_entries=0 if only_aggregates else 1,
    )
    if jax.process_index() == 0:
      file = io_utils.output_file(
        self._job_log_dir,
        io_utils.EvaluationMode.DECODE,
        self.input.name,
        step,
      )
      with self.writing(file):
        if results is not None:
          texts = None if only_aggregates else file.with_suffix('.txt')
          seqio_results.write_files(results, step, file.parent, texts)
        io_utils.write_key_value_pairs(
          file, outputs, write_pickle=self._output_pickle
        )
    return results

  def _batch_key(self, batch_index: int) -> jax.Array:
    if not self._task.decode.prng_key_fold_with_batch_index:
      return self._key
    return jax.random.fold_in(self._key, batch_index + 1)

  def _reset_input(self, num_batches: int) -> None:
    """Resets the input with `reset_for_eval` or at the end of its data."""
    if (
      self.input.reset_for_eval
      or num_batches != self.input.eval_loop_num_batches
    ):
      self.input.reset()
    if not num_batches:
      logging.warning('Decode input %r gave no batch', self.input.name)


class _DecodeAccumulator:
  """Metrics and outputs over batches; the host processes each batch."""

  def __init__(self, task: tasks_lib.SingleTask):
    self._task = task
    self._metrics: list[WeightedScalars] = []
    self._processed: list[WeightedScalars] = []
    # clu metrics of `process_decode_out`, merged over the batches.
    self._clu_metrics: dict[str, Any] = {}
    self._summaries = metric_accumulator.SummaryAccumulator()
    self.outputs: list[tuple[str | None, NestedMap]] = []
    self.num_batches = 0

  def add(
    self,
    output: StepOutput,
    host_inputs: NestedMap,
    inp: base_input.BaseInput,
  ) -> None:
    self.num_batches += 1
    metrics, tensors = jax.device_get(
      (output.weighted_scalars, output.summary_tensors)
    )
    self._metrics.append(metrics)
    self._summaries.add(tensors)
    rows = NestedMap(metric_accumulator.gather_to_host(output.per_example_out))
    xla_passthrough.merge_back_xla_unsupported_batch(rows, host_inputs)
    if jax.process_index():
      return
    # `process_decode_out` is host code: keep its arrays off the devices.
    with jax.default_device(jax.local_devices(backend='cpu')[0]):
      scalars, outputs, updates = self._task.model.process_decode_out(inp, rows)
      for name, metric in (updates or {}).items():
        if name in self._clu_metrics:
          metric = self._clu_metrics[name].merge(metric)
        self._clu_metrics[name] = metric
    self._processed.append(jax.tree.map(np.asarray, scalars))
    if outputs:
      self.outputs += seqio_outputs.maybe_update_decode_output_keys(
        outputs, rows
      )

  def result(self, state: TrainState) -> DecodeProgramOutput:
    decoded = self._aggregate(self._metrics)
    clu_values = {
      name: _number(name, metric.compute())
      for name, metric in self._clu_metrics.items()
    }
    # All processes need the metrics of process 0: those that stop early by
    # them stop at the same step.
    processed, clu_values = (
      metric_accumulator.broadcast_json_from_first_process(
        (self._aggregate(self._processed), clu_values)
      )
    )
    prefix = self._task.decode.metrics_prefix
    return DecodeProgramOutput(
      state,
      decode_metrics=_values(decoded),
      processed_decode_metrics=_values(processed) | clu_values,
      num_decode_steps=self.num_batches,
      scalars={
        **summaries.tags.weighted_scalars(decoded, _DECODE),
        **summaries.tags.weighted_scalars(processed, _PROCESS),
        **{f'{prefix}{name}': value for name, value in clu_values.items()},
        **self._summaries.scalars,
        **self._media(),
      },
    )

  def _media(self) -> dict[str, summaries.media.Media]:
    """Returns media by tag, audio with the `sample_rate` of the model."""
    media = self._summaries.media
    rate = getattr(self._task.model, 'sample_rate', None)
    if rate is None:
      return media
    return {
      tag: dataclasses.replace(item, sample_rate=rate)
      for tag, item in media.items()
    }

  def _aggregate(
    self, by_batch: list[WeightedScalars]
  ) -> dict[str, tuple[float, float]]:
    """Returns `task.metrics` over all batches."""
    if not any(by_batch):
      return {}
    aggregator: base_metrics.BaseMetrics = self._task.metrics_aggregator
    return {
      name: (_number(name, value), _number(name, weight))
      for name, (value, weight) in aggregator.aggregate(by_batch).items()
    }


def _values(pairs: Mapping[str, tuple[float, float]]) -> dict[str, float]:
  return {name: value for name, (value, _) in pairs.items()}


def _number(name: str, value: Any) -> float:
  """Returns a metric as a number."""
  array = np.asarray(value)
  if array.ndim:
    raise ValueError(
      f'the metric {name!r} of decoding must be a number, got the shape'
      f' {array.shape}; reduce it by task.metrics, such as HistogramMetrics, or'
      ' return it in the outputs'
    )
  return float(array)
