# SPDX-License-Identifier: Apache-2.0
"""One pass over an eval input."""

from __future__ import annotations

import abc
import pathlib
from typing import Any

import jax
from absl import logging

from pax import io_utils, partitioning, summaries, tasks_lib, xla_passthrough
from pax.programs import metric_accumulator, program
from pax.steps import StepOutput
from praxis import base_input, pytypes

NestedMap = pytypes.NestedMap
EvalProgramOutput = program.EvalProgramOutput
TrainState = program.TrainState


class BaseEvalProgram(program.InputProgram):
  """Evaluates an input; subclasses say how a batch is."""

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
    """Makes the input; to be called once, before `run`.

    Args:
      task: What is evaluated.
      partitioner: The task on its devices.
      job_log_dir: Where `eval_out` is.
      eval_prng_seed: The key of all randomness.
      enable_summary_writer: Whether the job writes summaries; it does, of what
        `run` returns.
    """
    del enable_summary_writer
    self._set_up(task, partitioner, job_log_dir, eval_prng_seed)

  def run(self, state: TrainState, step: int) -> EvalProgramOutput:
    """Evaluates; writes what was computed for each example.

    Metrics are the means over all batches by weight, and those that the input
    derives from them. Without a batch there are none.
    """
    found = self._loop(state)
    means = {name: mean for name, (mean, _) in found.metrics.items()}
    if not found.count:
      logging.warning('Eval input %r gave no batch', self.input.name)
    elif jax.process_index() == 0:
      file = io_utils.output_file(
        self._job_log_dir,
        io_utils.EvaluationMode.EVAL,
        self.input.name,
        step,
      )
      io_utils.write_key_value_pairs(file, found.examples())
    with_loss = means if found.loss is None else means | {'loss': found.loss}
    derived = self.input.derived_metrics(with_loss)
    return EvalProgramOutput(
      state,
      eval_metrics=means | derived,
      num_eval_steps=found.count,
      scalars=self._scalars(found, derived),
    )

  @abc.abstractmethod
  def eval_step(
    self,
    state: TrainState,
    prng_key: jax.Array,
    inputs: NestedMap,
    static_args: program.BaseStepFnStaticArgs,
  ) -> StepOutput:
    """Returns what is computed from a batch that is on the devices."""

  def _loop(self, state: TrainState) -> metric_accumulator.Collected:
    found = metric_accumulator.Collected(self._task.train.learner.loss_name)
    for batch in program.batches(self.input, self.before_batch):
      batch, kept, _ = xla_passthrough.split_out_xla_unsupported_batch(batch)
      on_devices = self._partitioner.put_batch(batch)
      output = self.eval_step(state, self._key, on_devices, self._static_args)
      found.add(output, kept)
    found.finish()
    if self.input.reset_for_eval:
      self.input.reset()
    return found

  def _scalars(
    self, found: metric_accumulator.Collected, derived: dict[str, float]
  ) -> dict[str, Any]:
    if not found.count:
      return {}
    prefix = self._task.decode.metrics_prefix
    return {
      summaries.tags.LOSS: found.loss,
      **summaries.tags.weighted_scalars(found.metrics, prefix),
      **{f'{prefix}{name}': value for name, value in derived.items()},
      **found.layer_summaries,
      **found.media,
    }


class SingleTaskEvalProgram(BaseEvalProgram):
  """Evaluates an input, with a step that is compiled at the first batch."""

  def eval_step(
    self,
    state: TrainState,
    prng_key: jax.Array,
    inputs: NestedMap,
    static_args: program.BaseStepFnStaticArgs,
  ) -> StepOutput:
    """Returns the forward pass of training, as `do_eval` has it."""
    return self._partitioner.eval_step_for(inputs)(state, inputs, prng_key)
