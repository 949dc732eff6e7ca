# SPDX-License-Identifier: Apache-2.0
"""What every program is: set up once, run when due, shut down in the end."""

from __future__ import annotations

import abc
import collections
import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from pax import partitioning, summaries, tasks_lib, train_states
from pax.steps import StepOutput
from praxis import base_input, pax_fiddle, pytypes

JTensor = pytypes.JTensor
NestedMap = pytypes.NestedMap
TrainState = train_states.TrainState
InputConfig = pax_fiddle.Config[base_input.BaseInput]


@dataclasses.dataclass(frozen=True)
class BaseStepFnStaticArgs:
  """What a step function is told beside arrays."""

  # Rows of a batch of all hosts, without padding.
  unpadded_global_batch_size: int | None


@dataclasses.dataclass(frozen=True)
class ProgramOutput:
  """What any program returns."""

  # The state after the program; only training changes it.
  state: TrainState


@dataclasses.dataclass(frozen=True)
class TrainProgramOutput(ProgramOutput):
  """What one step of training returns."""

  # The loss, and the weighted scalars of the step; maybe unfinished.
  loss: JTensor | None
  weighted_scalars: Mapping[str, Any] | None
  # The step after this one.
  new_train_step: int
  # Steps per second, where the program measured it.
  steps_per_sec: float | None = None
  # Metrics of the evaluation on the next batch, where there was one.
  eval_train_metrics: Mapping[str, float] | None = None
  # All that the step computed, summaries included.
  step_output: StepOutput | None = None


@dataclasses.dataclass(frozen=True)
class EvalProgramOutput(ProgramOutput):
  """What an evaluation of one input returns."""

  # The mean of each metric.
  eval_metrics: Mapping[str, float] | None = None
  # Metrics that the input makes of the outputs by example.
  eval_scoring_metrics: Mapping[str, float] | None = None
  # Number of batches, and how many of them there are a second.
  num_eval_steps: int = 0
  steps_per_sec: float | None = None
  # All that is written to the summaries, by tag.
  scalars: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class DecodeProgramOutput(ProgramOutput):
  """What decoding one input returns."""

  # The metrics of decoding, and those of processing what was decoded.
  decode_metrics: Mapping[str, float] | None = None
  processed_decode_metrics: Mapping[str, float] | None = None
  # Metrics that the input makes of the texts.
  seqio_metrics: Mapping[str, float] | None = None
  # Number of batches, and how many of them there are a second.
  num_decode_steps: int = 0
  steps_per_sec: float | None = None
  # All that is written to the summaries, by tag.
  scalars: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Program(abc.ABC):
  """Something that a job runs on the state of training, at some steps."""

  # Called with the number of batches done before each further one, by programs
  # that have several; what it raises ends the program.
  before_batch: Callable[[int], None] = staticmethod(lambda count: None)

  @abc.abstractmethod
  def should_run(self, state: TrainState, step: int) -> bool:
    """Whether to run now."""

  @abc.abstractmethod
  def run(self, state: TrainState, step: int) -> ProgramOutput:
    """Runs on the state that has done `step` steps."""

  @abc.abstractmethod
  def shutdown(self) -> None:
    """Ends the program; it is not run again."""


class InputProgram(Program):
  """A program that goes over an input of its own."""

  def __init__(self, input_p: InputConfig):
    """Takes the config of the input; `setup` does the rest."""
    self._input_p = input_p
    self._input: base_input.BaseInput | None = None

  @property
  def input(self) -> base_input.BaseInput:
    """The input.

    Raises:
      ValueError: before `setup`.
    """
    if self._input is None:
      raise ValueError(
        f'{type(self).__name__} has no input before setup; call'
        ' super().setup(...) first'
      )
    return self._input

  def should_run(self, state: TrainState, step: int) -> bool:
    """Always; the job knows the intervals."""
    return True

  def shutdown(self) -> None:
    """Nothing is left to do: outputs are written by `run`."""

  def _set_up(
    self,
    task: tasks_lib.SingleTask,
    partitioner: partitioning.Partitioner,
    job_log_dir: str | pathlib.Path,
    key: jax.Array,
  ) -> None:
    self._task = task
    self._partitioner = partitioner
    self._job_log_dir = pathlib.Path(job_log_dir)
    self._key = key
    input_p = for_this_process(self._input_p)
    self._input = input_p.Instantiate()
    self._static_args = BaseStepFnStaticArgs(
      input_p.cls.get_global_batch_size(input_p)
    )


def step_profiler(
  settings: Any, job_log_dir: str | pathlib.Path
) -> summaries.StepProfiler:
  """Returns what traces the steps that a task names, on the hosts it names."""
  hosts = settings.profiler_max_num_hosts
  count = settings.profiler_num_steps
  traced = count and (hosts is None or jax.process_index() < hosts)
  first = settings.profiler_capture_step if traced else None
  return summaries.StepProfiler(str(job_log_dir), first, count)


def for_this_process(input_p: InputConfig) -> InputConfig:
  """Returns the config, told which of the processes it reads for."""
  if input_p.num_infeed_hosts:
    return input_p
  return input_p.clone().set(
    num_infeed_hosts=jax.process_count(),
    infeed_host_index=jax.process_index(),
  )


def check_unique_names(inputs: Sequence[base_input.BaseInput]) -> None:
  """Checks that no two inputs have the same name.

  Raises:
    ValueError: two inputs have the same name.
  """
  counts = collections.Counter(inp.name for inp in inputs)
  for name, count in counts.items():
    if count > 1:
      raise ValueError(
        f'input names must be unique, got {name!r} for {count} inputs; set'
        ' `name` in the config of each: it names summaries and outputs'
      )


def batches(
  inp: base_input.BaseInput, before_batch: Callable[[int], None]
) -> Iterator[NestedMap]:
  """The batches of one pass: an epoch, or the next so many.

  With `reset_for_eval` it is always the whole epoch. Else it is
  `eval_loop_num_batches`, or what there is if that is None or -1.
  """
  count = inp.eval_loop_num_batches
  rounds = itertools.count()
  if count and count > 0 and not inp.reset_for_eval:
    rounds = range(count)
  for done in rounds:
    before_batch(done)
    try:
      yield inp.get_next_padded()
    except StopIteration:
      return


def get_eval_train_state(
  task: tasks_lib.SingleTask, state: TrainState, use_ema: bool
) -> TrainState:
  """Returns the state to evaluate: the variables, or their averages.

  Raises:
    ValueError: averages are asked for and there are none.
  """
  del task  # The state tells whether there are averages.
  return tasks_lib.extract_ema(state) if use_ema else state.to_eval_state()
