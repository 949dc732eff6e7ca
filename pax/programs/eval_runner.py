# SPDX-License-Identifier: Apache-2.0
"""Runs eval and decode programs on one state and writes their metrics."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax

from pax import io_utils, partitioning, summaries, train_states
from pax.programs import eval_batches, program
from pax.programs.decode import SingleTaskDecodeProgram
from pax.programs.eval import BaseEvalProgram
from praxis import base_input

TrainState = train_states.TrainState

OutputT = TypeVar(
  'OutputT', program.EvalProgramOutput, program.DecodeProgramOutput
)
ProgramT = TypeVar('ProgramT', BaseEvalProgram, SingleTaskDecodeProgram)

_MODES = io_utils.EvaluationMode
# (mode, name of the input) -> whether its outputs are already written.
IsDone = Callable[[io_utils.EvaluationMode, str], bool]

# Metrics that are printed besides the loss.
_HEADLINE_METRICS = ('bits_per_byte',)


def _never_done(mode: io_utils.EvaluationMode, name: str) -> bool:
  return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalRunner:
  """The eval and decode programs of a job, after their `setup`."""

  evals: Sequence[BaseEvalProgram] = ()
  decodes: Sequence[SingleTaskDecodeProgram] = ()
  writer: summaries.Writer
  progress: summaries.Progress
  # Called with the index of each batch before it; an exception ends the run.
  before_batch: Callable[[int], None]
  # Reads each batch, by calling its argument; an exception ends the run.
  read_batch: eval_batches.ReadBatch = lambda read: read()

  def __post_init__(self) -> None:
    program.check_unique_names([p.input for p in self.evals])
    program.check_unique_names([p.input for p in self.decodes])
    for kind, programs in (('eval', self.evals), ('decode', self.decodes)):
      for each in programs:
        each.before_batch = self._batch_callback(
          f'{kind} {each.input.name}', each.input
        )
        each.read_batch = self.read_batch
        each.is_reported = True

  @property
  def inputs(self) -> list[base_input.BaseInput]:
    """The inputs of the programs."""
    return [each.input for each in (*self.evals, *self.decodes)]

  def evaluate(
    self, state: TrainState, step: int, is_done: IsDone = _never_done
  ) -> dict[str, program.EvalProgramOutput]:
    """Evaluates a state on the inputs that are not done.

    Args:
      state: The eval state.
      step: Number of training steps of the state.
      is_done: Whether the outputs of an input are already written.

    Returns:
      The outputs of the programs by name of their input.
    """
    outputs = {}
    for name, each in self._due(self.evals, _MODES.EVAL, state, step, is_done):
      start = time.monotonic()
      output = each.run(state, step)
      output = _with_speed(output, output.num_eval_steps, start)
      self._write(step, output, f'eval_test_{name}')
      self._print_metrics(step, headline_metrics(name, output))
      outputs[name] = output
    return outputs

  def decode(
    self, state: TrainState, step: int, is_done: IsDone = _never_done
  ) -> dict[str, program.DecodeProgramOutput]:
    """Decodes the inputs that are not done, with arguments as `evaluate`."""
    outputs = {}
    for name, each in self._due(
      self.decodes, _MODES.DECODE, state, step, is_done
    ):
      start = time.monotonic()
      output = each.run(state, step)
      output = _with_speed(output, output.num_decode_steps, start)
      self._write(step, output, f'decode_test_{name}')
      count = summaries.batch_count(output.num_decode_steps)
      self.progress.print(f'step {step}  decoded {name}: {count}')
      headline = each.headline_metrics(output)
      self._print_metrics(step, task_metrics(name, headline))
      outputs[name] = output
    return outputs

  def shutdown(self) -> None:
    """Shuts the programs down."""
    for each in (*self.evals, *self.decodes):
      each.shutdown()

  def _due(
    self,
    programs: Sequence[ProgramT],
    mode: io_utils.EvaluationMode,
    state: TrainState,
    step: int,
    is_done: IsDone,
  ) -> Iterator[tuple[str, ProgramT]]:
    """Yields (name of the input, program) of the programs to run."""
    for each in programs:
      name = each.input.name
      if not each.should_run(state, step):
        continue
      if is_done(mode, name):
        self.progress.print(f'step {step}  {mode} {name}: written before')
      else:
        yield name, each

  def _write(
    self,
    step: int,
    output: program.EvalProgramOutput | program.DecodeProgramOutput,
    split: str,
  ) -> None:
    """Writes metrics at once: a resumed job has no others of these outputs."""
    self.writer.write(step, output.scalars, split=split)
    self.writer.flush()

  def _print_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
    if not metrics:
      return
    parts = '  '.join(f'{name} {value:.4f}' for name, value in metrics.items())
    self.progress.print(f'step {step}  {parts}')

  def _batch_callback(
    self, label: str, inp: base_input.BaseInput
  ) -> Callable[[int], None]:
    limit = None if inp.reset_for_eval else inp.eval_loop_num_batches
    num_batches = limit if limit and limit > 0 else None

    def before_batch(batch_index: int) -> None:
      self.before_batch(batch_index)
      self.progress.batches(label, batch_index, num_batches)

    return before_batch


def create_eval_runner(
  evals: Sequence[BaseEvalProgram],
  decodes: Sequence[SingleTaskDecodeProgram],
  partitioner: partitioning.Partitioner,
  job_log_dir: str | os.PathLike[str],
  *,
  output_pickle: bool,
  enable_summary_writer: bool,
  **fields: Any,
) -> EvalRunner:
  """Sets programs up, and returns their runner.

  Args:
    evals: The eval programs.
    decodes: The decode programs.
    partitioner: The task on its devices.
    job_log_dir: The directory of the job.
    output_pickle: Whether decoded outputs are also written as `.npz`.
    enable_summary_writer: Whether programs may write summaries.
    **fields: Other fields of EvalRunner.
  """
  task, directory = partitioner.task, pathlib.Path(job_log_dir)
  for eval_program in evals:
    eval_program.setup(
      task,
      partitioner,
      directory,
      jax.random.key(task.evaluate.random_seed),
      enable_summary_writer=enable_summary_writer,
    )
  for decode_program in decodes:
    decode_program.setup(
      task,
      partitioner,
      directory,
      jax.random.key(task.decode.random_seed),
      output_pickle=output_pickle,
      enable_summary_writer=enable_summary_writer,
    )
  return EvalRunner(evals=evals, decodes=decodes, **fields)


def _with_speed(output: OutputT, num_batches: int, start: float) -> OutputT:
  """Returns the output with the batches per second since `start`."""
  if not num_batches:
    return output
  rate = num_batches / (time.monotonic() - start)
  scalars = {**output.scalars, summaries.tags.STEPS_PER_SEC: rate}
  return dataclasses.replace(output, steps_per_sec=rate, scalars=scalars)


def headline_metrics(
  name: str, output: program.EvalProgramOutput
) -> dict[str, float]:
  """Returns the metrics to print.

  They are the loss, bits per byte, and metrics of a SeqIO task.

  Args:
    name: Name of the input, the prefix of the metrics.
    output: The output of the eval program.
  """
  metrics = output.eval_metrics or {}
  shown: dict[str, float] = {}
  loss = output.scalars.get(summaries.tags.LOSS)
  if loss is not None and not isinstance(loss, summaries.media.Media):
    shown[f'{name} loss'] = loss
  shown |= {
    f'{name} {metric}': metrics[metric]
    for metric in _HEADLINE_METRICS
    if metric in metrics
  }
  return shown | task_metrics(name, output.eval_scoring_metrics or {})


def task_metrics(name: str, metrics: Mapping[str, float]) -> dict[str, float]:
  """Returns metrics of a SeqIO task to print, after the name of the input."""
  return {f'{name} {metric}': value for metric, value in metrics.items()}
