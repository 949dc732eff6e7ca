# SPDX-License-Identifier: Apache-2.0
"""Eval programs: evaluation of one input."""

from __future__ import annotations

import abc
import pathlib
from collections.abc import Callable
from typing import Any

import jax
from absl import logging
from typing_extensions import override

from pax import io_utils, partitioning, summaries, tasks_lib
from pax.programs import (
  eval_batches,
  metric_accumulator,
  output_files,
  program,
  seqio_results,
)
from pax.steps import Batch, StepOutput
from praxis import base_input
from praxis.pytypes import Nested

PartitionSpec = jax.sharding.PartitionSpec
EvalProgramOutput = program.EvalProgramOutput
TrainState = program.TrainState


class BaseEvalProgram(program.InputProgram):
  """Evaluates an input; subclasses define `eval_step`."""

  @property
  def eval_input(self) -> base_input.BaseInput:
    """The input."""
    return self.input

  def setup(
    self,
    task: tasks_lib.SingleTask,
    partitioner: partitioning.Partitioner,
    job_log_dir: str | pathlib.Path,
    eval_prng_seed: jax.Array,
    enable_summary_writer: bool = True,
  ) -> None:
    """Builds the input; call it once, before `run`.

    Args:
      task: The task to evaluate.
      partitioner: The partitioner of the task.
      job_log_dir: The directory of the job; outputs go to its `eval_out`.
      eval_prng_seed: PRNG key of evaluation.
      enable_summary_writer: Whether the program may write summaries; in a run
        of Pax the job writes those that `run` returns.
    """
    self._eval_prng_seed = eval_prng_seed
    self._set_up(
      task, partitioner, job_log_dir, eval_prng_seed, enable_summary_writer
    )

  def run(self, state: TrainState, step: int) -> EvalProgramOutput:
    """Evaluates the input and writes the outputs of each example.

    Metrics are weighted means over all batches, and those that the input
    derives from them; without a batch there are none.

    Raises:
      ValueError: The input has ended although it is not reset for each
        evaluation.
    """
    accumulator = self._evaluate_batches(state)
    means = {name: mean for name, (mean, _) in accumulator.metrics.items()}
    task_results = self._process_examples(accumulator, step)
    loss = accumulator.loss
    with_loss = means if loss is None else means | {'loss': loss}
    derived = self.input.derived_metrics(with_loss)
    scalars = self._scalars(accumulator, derived)
    if task_results is not None:
      scalars |= task_results.summaries
    if not self.is_reported:
      self._write_summaries(step, scalars, f'eval_test_{self.input.name}')
    return EvalProgramOutput(
      state,
      eval_metrics=means | derived,
      eval_scoring_metrics=(
        None if task_results is None else task_results.metrics
      ),
      num_eval_steps=accumulator.num_batches,
      scalars=scalars,
    )

  @abc.abstractmethod
  def eval_step(
    self,
    state: TrainState,
    prng_key: jax.Array,
    inputs: Batch,
    static_args: program.BaseStepFnStaticArgs,
  ) -> StepOutput:
    """Returns the evaluation of a batch.

    Args:
      state: The eval state.
      prng_key: PRNG key of evaluation.
      inputs: The global batch on the devices.
      static_args: Arguments that are not traced.
    """

  def eval_input_partition_spec(
    self, inputs: Batch
  ) -> Nested[PartitionSpec] | None:
    """Returns the specs of a batch; None without a mesh.

    `Partitioner.preprocess_inputs` receives them.
    """
    return self._partitioner.input_partition_specs(inputs)

  def _evaluate_batches(
    self, state: TrainState
  ) -> metric_accumulator.MetricAccumulator:
    accumulator = metric_accumulator.MetricAccumulator(
      self._task.loss_aggregator_inst.summed_names
    )
    for host_batch in eval_batches.iterate_batches(
      self.input, self.before_batch, self.read_batch, self._common_end
    ):
      batch, host_inputs = self._place(
        host_batch, self.eval_input_partition_spec(host_batch)
      )
      output = self.eval_step(state, self._key, batch, self._static_args)
      accumulator.add(output, host_inputs)
    accumulator.finish()
    eval_batches.check_num_batches(self.input, accumulator.num_batches)
    if self.input.reset_for_eval:
      self.input.reset()
    return accumulator

  def _process_examples(
    self, accumulator: metric_accumulator.MetricAccumulator, step: int
  ) -> seqio_results.SeqIOResults | None:
    """Writes the outputs of each example; returns metrics of a SeqIO task."""
    if not accumulator.num_batches:
      logging.warning('Eval input %r gave no batch', self.input.name)
      return None
    is_first = jax.process_index() == 0
    examples = accumulator.examples() if is_first else []
    results = seqio_results.compute_for_all_processes(
      self.input,
      examples,
      seqio_results.MetricType.SCORE,
      verbose_entries=0 if output_files.writes_only_aggregates() else 1,
    )
    if is_first:
      file = io_utils.output_file(
        self._job_log_dir,
        io_utils.EvaluationMode.EVAL,
        self.input.name,
        step,
      )
      with self.writing(file):
        if results is not None:
          seqio_results.write_files(results, step, file.parent)
        io_utils.write_key_value_pairs(file, examples)
    return results

  def _scalars(
    self,
    accumulator: metric_accumulator.MetricAccumulator,
    derived: dict[str, float],
  ) -> dict[str, float | summaries.media.Media]:
    if not accumulator.num_batches:
      return {}
    prefix = self._task.decode.metrics_prefix
    return {
      summaries.tags.LOSS: accumulator.loss,
      **summaries.tags.weighted_scalars(accumulator.metrics, prefix),
      **{f'{prefix}{name}': value for name, value in derived.items()},
      **accumulator.layer_summaries,
      **accumulator.media,
    }


class SingleTaskEvalProgram(BaseEvalProgram):
  """Evaluates an input with a step that is compiled at its first batch."""

  @override
  def eval_step(
    self,
    state: TrainState,
    prng_key: jax.Array,
    inputs: Batch,
    static_args: program.BaseStepFnStaticArgs,
  ) -> StepOutput:
    """Returns the forward pass with `do_eval`."""
    eval_step, _ = self._get_eval_step(inputs)
    _, output = eval_step(state, prng_key, inputs, static_args)
    return output

  @override
  def eval_input_partition_spec(
    self, inputs: Batch
  ) -> Nested[PartitionSpec] | None:
    """Returns the specs of a batch; None without a mesh."""
    if program.overrides(self, SingleTaskEvalProgram, '_get_eval_step'):
      return self._get_eval_step(inputs)[1]
    return super().eval_input_partition_spec(inputs)

  def _get_eval_step(
    self, inputs: Batch
  ) -> tuple[Callable[..., Any], Nested[PartitionSpec] | None]:
    """Returns the eval step and the specs of its batch.

    Subclasses may return those of `Partitioner.partition`.
    """
    step = program.eval_step_with_static_args(
      self._partitioner, self._partitioner.eval_step_for
    )
    spec = super().eval_input_partition_spec(inputs)
    return step, spec
