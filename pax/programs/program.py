# SPDX-License-Identifier: Apache-2.0
"""Programs: one jitted step with `setup`, `run` and `shutdown`."""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from pax import (
  partitioning,
  summaries,
  tasks_lib,
  train_states,
  xla_passthrough,
)
from pax.programs import eval_batches
from pax.steps import (
  BaseStepFnStaticArgs,
  Batch,
  StepOutput,
  WeightedScalars,
)
from pax.summaries.writer import SUMMARIES_DIR
from praxis import base_input, pax_fiddle, pytypes
from praxis.pytypes import Nested

NestedMap = pytypes.NestedMap
JTensor = pytypes.JTensor
TrainState = train_states.TrainState
InputConfig = pax_fiddle.Config[base_input.BaseInput]


@dataclasses.dataclass(frozen=True)
class ProgramOutput:
  """Output of any program."""

  # The state after the program; only training changes it.
  state: TrainState


@dataclasses.dataclass(frozen=True)
class TrainProgramOutput(ProgramOutput):
  """Output of one training step."""

  # Mean loss and weighted scalars of the step.
  loss: JTensor | None
  weighted_scalars: WeightedScalars | None
  # Number of the next step.
  new_train_step: int
  # Steps per second; None if the program does not measure it.
  steps_per_sec: float | None = None
  # Metrics of the evaluation on the next batch; None without one.
  eval_train_metrics: Mapping[str, float] | None = None
  # The complete output of the step function.
  step_output: StepOutput | None = None


@dataclasses.dataclass(frozen=True)
class EvalProgramOutput(ProgramOutput):
  """Output of the evaluation on one input."""

  # Weighted mean of each metric.
  eval_metrics: Mapping[str, float] | None = None
  # Metrics that the input computes from the outputs by example.
  eval_scoring_metrics: Mapping[str, float] | None = None
  # Number of batches, and batches per second.
  num_eval_steps: int = 0
  steps_per_sec: float | None = None
  # Summaries by tag.
  scalars: Mapping[str, float | summaries.media.Media] = dataclasses.field(
    default_factory=dict
  )


@dataclasses.dataclass(frozen=True)
class DecodeProgramOutput(ProgramOutput):
  """Output of decoding one input."""

  # Metrics of `model.decode` and of `model.process_decode_out`.
  decode_metrics: Mapping[str, float] | None = None
  processed_decode_metrics: Mapping[str, float] | None = None
  # Metrics that the input computes from the decoded texts.
  seqio_metrics: Mapping[str, float] | None = None
  # Number of batches, and batches per second.
  num_decode_steps: int = 0
  steps_per_sec: float | None = None
  # Summaries by tag.
  scalars: Mapping[str, float | summaries.media.Media] = dataclasses.field(
    default_factory=dict
  )


class Program(abc.ABC):
  """A step that a job repeats on the train state."""

  # Called with the index of each batch before it; an exception ends the
  # program.
  before_batch: Callable[[int], None] = staticmethod(lambda batch_index: None)
  # Context in which an output file is written. In a training job it makes an
  # error a warning; in other jobs the outputs are the result.
  writing: Callable[
    [str | os.PathLike[str]], contextlib.AbstractContextManager[None]
  ] = staticmethod(lambda path: contextlib.nullcontext())
  # Returns the result of a function that reads a batch; an exception ends the
  # program.
  read_batch: eval_batches.ReadBatch = staticmethod(lambda read: read())
  # Whether the loop reports the outputs of `run`: writes their summaries and,
  # in training, evaluates on training batches. Otherwise `run` does, as loops
  # written for paxml expect.
  is_reported: bool = False
  # The writer of the job; None opens one when there is something to write.
  writer: summaries.Writer | None = None
  _own_writer: summaries.Writer | None = None
  _enable_summary_writer: bool = True
  _job_log_dir: pathlib.Path

  @abc.abstractmethod
  def should_run(self, state: TrainState, step: int) -> bool:
    """Returns whether to run at this step."""

  @abc.abstractmethod
  def run(self, state: TrainState, step: int) -> ProgramOutput:
    """Runs on the state after `step` training steps."""

  @abc.abstractmethod
  def shutdown(self) -> None:
    """Releases resources after the last `run`."""

  def _write_summaries(self, step: int, scalars: Any, split: str) -> None:
    """Writes summaries to the writer of the job, or to one of the program.

    Args:
      step: The training step.
      scalars: Values by tag, or a function that returns them.
      split: The split, such as `train`.
    """
    writer = self.writer or self._own_writer
    if writer is None:
      writer = self._own_writer = summaries.create_writer(
        str(self._job_log_dir),
        self._enable_summary_writer and jax.process_index() == 0,
      )
    writer.write(step, scalars, split)

  def _close_writer(self) -> None:
    """Closes the writer of the program, if it has opened one."""
    writer, self._own_writer = self._own_writer, None
    if writer is not None:
      writer.close()


class InputProgram(Program):
  """A program with an input of its own."""

  def __init__(self, input_p: InputConfig):
    """Takes the config of the input; `setup` builds it."""
    self._input_p = input_p
    self._input: base_input.BaseInput | None = None

  @property
  def input(self) -> base_input.BaseInput:
    """The input.

    Raises:
      ValueError: Called before `setup`.
    """
    if self._input is None:
      raise ValueError(
        f'{type(self).__name__} has no input before setup; call'
        ' super().setup(...) first'
      )
    return self._input

  def should_run(self, state: TrainState, step: int) -> bool:
    """Returns True; the job applies the intervals."""
    return True

  def shutdown(self) -> None:
    """Closes the summary writer of the program."""
    self._close_writer()

  def _place(
    self, host_batch: Batch, spec: Nested[jax.sharding.PartitionSpec] | None
  ) -> tuple[Batch, NestedMap]:
    """Returns the global batch, and the leaves that devices cannot hold.

    Args:
      host_batch: The batch of this host.
      spec: The specs of the batch.
    """
    host_batch, host_inputs, spec = (
      xla_passthrough.split_out_xla_unsupported_batch(host_batch, spec)
    )
    batch = place_batch(self._partitioner, self.input, host_batch, spec)
    return batch, host_inputs

  def _set_up(
    self,
    task: tasks_lib.SingleTask,
    partitioner: partitioning.Partitioner,
    job_log_dir: str | pathlib.Path,
    key: jax.Array,
    enable_summary_writer: bool,
  ) -> None:
    self._enable_summary_writer = enable_summary_writer
    self._task = task
    self._partitioner = partitioner
    self._job_log_dir = pathlib.Path(job_log_dir)
    self._key = key
    input_p = self._partitioner.preprocess_input_config(self._input_p.clone())
    self._input = input_p.Instantiate()
    self._common_end = eval_batches.CommonEnd()
    self._static_args = BaseStepFnStaticArgs(
      input_p.cls.get_global_batch_size(input_p)
    )


def overrides(instance: Program, base: type, *names: str) -> bool:
  """Returns whether the class of a program overrides attributes of a base.

  Args:
    instance: The program.
    base: The base class.
    *names: Names of methods or properties.
  """
  cls = type(instance)
  return any(getattr(cls, name) is not getattr(base, name) for name in names)


def eval_step_with_static_args(
  partitioner: partitioning.Partitioner,
  step_for: Callable[[Batch], Callable[..., StepOutput]],
) -> Callable[..., tuple[None, StepOutput]]:
  """Returns `(state, key, batch, static_args) -> (None, output)`.

  Args:
    partitioner: The partitioner.
    step_for: Batch on the mesh -> step `(state, batch, key) -> output`.
  """

  def run(
    state: TrainState,
    prng_key: jax.Array,
    inputs: Batch,
    static_args: BaseStepFnStaticArgs | None = None,
  ) -> tuple[None, StepOutput]:
    del static_args
    batch = on_mesh(partitioner, inputs)
    return None, step_for(batch)(state, batch, prng_key)

  return run


def place_batch(
  partitioner: partitioning.Partitioner,
  inp: base_input.BaseInput,
  host_batch: Batch,
  specs: Nested[jax.sharding.PartitionSpec] | None,
) -> Batch:
  """Returns the global batch of a batch of this host; thread-safe.

  Args:
    partitioner: The partitioner.
    inp: The input of the batch.
    host_batch: The batch.
    specs: The specs of the batch; None without a mesh.
  """
  batch = partitioner.preprocess_inputs(inp, host_batch, specs)
  return on_mesh(partitioner, batch)


def on_mesh(partitioner: partitioning.Partitioner, batch: Batch) -> Batch:
  """Returns the global batch of a batch of this host, or the global `batch`."""
  if any(isinstance(x, np.ndarray) for x in jax.tree.leaves(batch)):
    return partitioner.put_batch(batch)
  return batch


def get_summary_base_dir(job_log_dir: str | pathlib.Path) -> pathlib.Path:
  """Returns the directory of the TensorBoard events of a job."""
  return pathlib.Path(job_log_dir) / SUMMARIES_DIR


class ProfilerSettings(Protocol):
  """The profiler fields of `task.train` and `task.decode`."""

  profiler_num_steps: int
  profiler_min_duration_sec: float
  profiler_capture_step: int | None
  profiler_max_num_hosts: int | None


def create_step_profiler(
  settings: ProfilerSettings,
  job_log_dir: str | pathlib.Path,
  on_written: Callable[[pathlib.Path], None] = lambda trace: None,
) -> summaries.StepProfiler:
  """Returns the profiler of the steps and hosts that a task selects.

  Args:
    settings: The fields of the task.
    job_log_dir: The directory of the job.
    on_written: Called with the file of the trace.
  """
  hosts = settings.profiler_max_num_hosts
  num_steps = settings.profiler_num_steps
  is_profiled = num_steps and (hosts is None or jax.process_index() < hosts)
  return summaries.StepProfiler(
    str(job_log_dir),
    settings.profiler_capture_step if is_profiled else None,
    num_steps,
    min_duration_secs=settings.profiler_min_duration_sec,
    on_written=on_written,
  )


def with_infeed_host(input_p: InputConfig) -> InputConfig:
  """Returns the config for this process, unless its infeed hosts are set."""
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


def get_eval_train_state(
  task: tasks_lib.SingleTask, state: TrainState, use_ema: bool
) -> TrainState:
  """Returns the state to evaluate: the variables or their averages (EMA).

  Args:
    task: Unused; the state holds the averages.
    state: The train state.
    use_ema: Whether the averages replace the variables.

  Raises:
    ValueError: `use_ema` is set and the state has no averages.
  """
  del task
  return tasks_lib.extract_ema(state) if use_ema else state.to_eval_state()
