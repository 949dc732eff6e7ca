# SPDX-License-Identifier: Apache-2.0
"""One step of training, as a program that a user may change."""

from __future__ import annotations

import abc
import dataclasses
import pathlib
from typing import Any

import jax

from pax import partitioning, tasks_lib
from pax.inputs import prefetch
from pax.programs import program
from pax.steps import StepOutput
from praxis import pytypes

NestedMap = pytypes.NestedMap
TrainProgramOutput = program.TrainProgramOutput
TrainState = program.TrainState


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Settings:
  """What is read at every step: a Config takes its time to tell."""

  num_train_steps: int
  eval_skip_train: bool
  eval_use_ema_states: bool


class BaseTrainProgram(program.Program):
  """Trains on the batches of an input; subclasses say how on one."""

  @property
  def train_input(self) -> prefetch.Prefetcher:
    """The input, whose batches are on the devices already."""
    return self._train_input

  @property
  def train_unpadded_global_batch_size(self) -> int | None:
    """Rows of a batch of all hosts."""
    return self._static_args.unpadded_global_batch_size

  def setup(
    self,
    task: tasks_lib.SingleTask,
    train_input: prefetch.Prefetcher,
    partitioner: partitioning.Partitioner,
    job_log_dir: str | pathlib.Path,
    train_prng_seed: jax.Array,
    eval_prng_seed: jax.Array,
  ) -> None:
    """Takes what is trained and on what; to be called once, before `run`.

    Args:
      task: What is trained.
      train_input: Gives batches that are on the devices.
      partitioner: The task on its devices.
      job_log_dir: The directory of the job.
      train_prng_seed: The key of the run; steps fold their number in.
      eval_prng_seed: The key of evaluation.
    """
    self._task = task
    self._train_input = train_input
    self._partitioner = partitioner
    self._job_log_dir = pathlib.Path(job_log_dir)
    self._train_prng_seed = train_prng_seed
    self._eval_prng_seed = eval_prng_seed
    self._static_args = program.BaseStepFnStaticArgs(
      next(iter(jax.tree.leaves(partitioner.input_spec))).shape[0]
    )
    train = task.train
    self._settings = _Settings(
      num_train_steps=int(train.num_train_steps),
      eval_skip_train=train.eval_skip_train,
      eval_use_ema_states=train.eval_use_ema_states,
    )

  def update_state(self, state: TrainState, step: int) -> TrainState:
    """Returns the state to train at `step`; a subclass may change it."""
    del step
    return state

  def should_run(self, state: TrainState, step: int) -> bool:
    """Whether `step` is not yet done."""
    return step < self._settings.num_train_steps

  def run(self, state: TrainState, step: int) -> TrainProgramOutput:
    """Takes a batch and trains on it; nothing here waits for the devices."""
    new_step, state, output = self.train_step(
      step,
      state,
      self._train_prng_seed,
      self._train_input.get_next(),
      self._static_args,
    )
    return TrainProgramOutput(
      state,
      loss=output.loss,
      weighted_scalars=output.weighted_scalars,
      new_train_step=new_step,
      step_output=output,
    )

  def run_eval_train(self, state: TrainState) -> StepOutput | None:
    """Evaluates on the batch that comes next, before it is trained on.

    None if the task skips that, or there is no further batch.
    """
    if self._settings.eval_skip_train:
      return None
    inputs = self._train_input.peek()
    if inputs is None:
      return None
    return self.eval_train_step(
      program.get_eval_train_state(
        self._task, state, self._settings.eval_use_ema_states
      ),
      self._eval_prng_seed,
      inputs,
      self._static_args,
    )

  def shutdown(self) -> None:
    """Nothing is left to do."""

  @abc.abstractmethod
  def train_step(
    self,
    step: int,
    state: TrainState,
    prng_key: jax.Array,
    inputs: NestedMap,
    static_args: program.BaseStepFnStaticArgs,
  ) -> tuple[int, TrainState, StepOutput]:
    """Returns the next step, the state then, and what was computed."""

  @abc.abstractmethod
  def eval_train_step(
    self,
    state: TrainState,
    prng_key: jax.Array,
    inputs: NestedMap,
    static_args: program.BaseStepFnStaticArgs,
  ) -> StepOutput:
    """Returns the evaluation of a training batch."""


class SingleTaskTrainProgram(BaseTrainProgram):
  """Trains a task by the steps that its partitioner compiles."""

  def setup(self, task: Any, *args: Any, **kwargs: Any) -> None:
    """See the base class."""
    super().setup(task, *args, **kwargs)
    self._compiled_step = self._partitioner.train_step()

  def train_step(
    self,
    step: int,
    state: TrainState,
    prng_key: jax.Array,
    inputs: NestedMap,
    static_args: program.BaseStepFnStaticArgs,
  ) -> tuple[int, TrainState, StepOutput]:
    """Returns the next step, the state then, and what was computed."""
    state, output = self._compiled_step(state, inputs, prng_key)
    return step + 1, state, output

  def eval_train_step(
    self,
    state: TrainState,
    prng_key: jax.Array,
    inputs: NestedMap,
    static_args: program.BaseStepFnStaticArgs,
  ) -> StepOutput:
    """Returns the evaluation of a training batch."""
    return self._partitioner.eval_step_for(inputs)(state, inputs, prng_key)
