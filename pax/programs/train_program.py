# SPDX-License-Identifier: Apache-2.0
"""Train programs: one training step per `run`; users may subclass them."""

from __future__ import annotations

import abc
import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from typing_extensions import override

from pax import partitioning, tasks_lib
from pax.inputs import prefetch
from pax.partitioning import nonfinite
from pax.programs import program, step_reporter
from pax.steps import Batch, StepOutput
from pax.summaries import summary_writer, tags
from praxis import base_input
from praxis.pytypes import Nested

PartitionSpec = jax.sharding.PartitionSpec
TrainInput = base_input.BaseInput | prefetch.Prefetcher
TrainProgramOutput = program.TrainProgramOutput
TrainState = program.TrainState

_TRAIN, _EVAL_TRAIN = 'train', 'eval_train'


@dataclasses.dataclass(frozen=True, kw_only=True)
class _StepSettings:
  """Fields of `task.train` used at every step, where a Config is slow."""

  num_train_steps: int
  eval_interval_steps: int | None
  eval_skip_train: bool
  eval_use_ema_states: bool


class BaseTrainProgram(program.Program):
  """Trains on the batches of an input; subclasses define `train_step`."""

  def __init__(self) -> None:
    self._first_result_callback: Callable[[bool], None] | None = None
    self._summary_writer: summary_writer.SummaryWriter | None = None

  def register_first_result_callback_fn(
    self, train_first_result_callback_fn: Callable[[bool], None]
  ) -> None:
    """Sets a function that is called with True after the first step."""
    self._first_result_callback = train_first_result_callback_fn

  def first_result_callback_fn(self, metric: bool) -> None:
    """Calls the registered function, if there is one."""
    if self._first_result_callback is not None:
      self._first_result_callback(metric)

  @property
  def train_input(self) -> TrainInput:
    """The training input."""
    return self._train_input

  @property
  def summary_writer(self) -> summary_writer.SummaryWriter:
    """A writer of further summaries to `summaries/train`, opened when read."""
    if self._summary_writer is None:
      self._summary_writer = summary_writer.open_summary_writer(
        program.get_summary_base_dir(self._job_log_dir) / _TRAIN,
        self._enable_summary_writer,
      )
    return self._summary_writer

  @property
  def train_unpadded_global_batch_size(self) -> int | None:
    """Rows of the global batch."""
    return self._train_unpadded_global_batch_size

  @property
  def reads_host_batches(self) -> bool:
    """Whether a subclass converts the batches of hosts to global ones.

    Otherwise a loop may give the program an input of global batches.
    """
    return program.overrides(
      self, BaseTrainProgram, 'run', 'train_input_partition_spec'
    )

  @property
  def has_own_step(self) -> bool:
    """Whether the program trains by another step than the partitioner's."""
    return True

  def setup(
    self,
    task: tasks_lib.SingleTask,
    train_input: TrainInput,
    partitioner: partitioning.Partitioner,
    job_log_dir: str | pathlib.Path,
    train_prng_seed: jax.Array,
    eval_prng_seed: jax.Array,
    init_step: int,
    enable_summary_writer: bool = True,
  ) -> None:
    """Sets the program up; call it once, before `run`.

    Args:
      task: The task to train.
      train_input: Input of the batches of this host; or, unless
        `reads_host_batches`, of global batches on the devices.
      partitioner: The partitioner of the task.
      job_log_dir: The directory of the job.
      train_prng_seed: PRNG key of training; steps fold their number in.
      eval_prng_seed: PRNG key of evaluation.
      init_step: The first step.
      enable_summary_writer: Whether the program may write summaries.
    """
    self._task = task
    self._train_input = train_input
    self._partitioner = partitioner
    self._job_log_dir = pathlib.Path(job_log_dir)
    self._train_prng_seed = train_prng_seed
    self._eval_prng_seed = eval_prng_seed
    self._initial_step = init_step
    self._enable_summary_writer = enable_summary_writer
    source = prefetch.source_of(train_input)
    self._train_unpadded_global_batch_size = source.get_global_batch_size(
      source
    )
    self._static_args = program.BaseStepFnStaticArgs(
      unpadded_global_batch_size=self._train_unpadded_global_batch_size
    )
    train = task.train
    self._settings = _StepSettings(
      num_train_steps=int(train.num_train_steps),
      eval_interval_steps=train.eval_interval_steps,
      eval_skip_train=train.eval_skip_train,
      eval_use_ema_states=train.eval_use_ema_states,
    )
    self._reporter = step_reporter.StepReporter(task, init_step)

  def steps_besides_update(
    self,
    partitioner: partitioning.Partitioner,
    train_input_p: program.InputConfig,
  ) -> Mapping[str, partitioning.PartitionedStep]:
    """Returns further steps on the state, by what they do, for `--mode=aot`.

    Args:
      partitioner: The partitioner of the task; the program need not be set up.
      train_input_p: The config of the training input.
    """
    del partitioner, train_input_p
    return {}

  def update_state(self, state: TrainState, step: int) -> TrainState:
    """Returns the state that enters `step`; subclasses may change it."""
    del step
    return state

  def should_run(self, state: TrainState, step: int) -> bool:
    """Returns whether `step` is before the last step."""
    return step < self._settings.num_train_steps

  def run(self, state: TrainState, step: int) -> TrainProgramOutput:
    """Trains on the next batch; does not wait for the devices."""
    inputs = self._next_batch(state, step)
    new_step, state, output = self.train_step(
      step, state, self._train_prng_seed, inputs, self._static_args
    )
    if step == self._initial_step:
      self.first_result_callback_fn(True)
    steps_per_sec, eval_train_metrics = None, None
    if not self.is_reported:
      steps_per_sec = self._maybe_write_summaries(step, new_step, output)
      interval = self._settings.eval_interval_steps
      if interval and new_step % interval == 0:
        eval_train_metrics = self._maybe_run_eval_train(state, new_step)
    return TrainProgramOutput(
      state,
      loss=output.loss,
      weighted_scalars=output.weighted_scalars,
      new_train_step=new_step,
      steps_per_sec=steps_per_sec,
      eval_train_metrics=eval_train_metrics,
      step_output=output,
    )

  def run_eval_train(self, state: TrainState) -> StepOutput | None:
    """Returns the evaluation on the next training batch, left in the input.

    None if `eval_skip_train` is set or no batch remains.
    """
    if self._settings.eval_skip_train:
      return None
    batch = self._train_input.peek_padded()
    if batch is None:
      return None
    return self.eval_train_step(
      program.get_eval_train_state(
        self._task, state, self._settings.eval_use_ema_states
      ),
      self._eval_prng_seed,
      self._place(batch),
      self._static_args,
    )

  def headline_metrics(
    self, output: TrainProgramOutput
  ) -> Mapping[str, ArrayLike]:
    """Returns the metrics of the progress line; does not wait for the devices.

    Args:
      output: The output of `run`.
    """
    return {} if output.loss is None else {'loss': output.loss}

  def locate_nonfinite(
    self, state: TrainState, step: int, batch: Batch
  ) -> nonfinite.NonfiniteReport | None:
    """Returns where a step has its first NaN or inf; None if unsupported.

    Args:
      state: The variables and optimizer states that entered the step.
      step: Number of the step.
      batch: The batch of the step, as the input gave it.
    """
    del state, step, batch
    return None

  def shutdown(self) -> None:
    """Waits for the steps in flight; closes the summary writers.

    Raises:
      DivergedError: The last steps were not finite.
    """
    try:
      self._reporter.wait_for_all()
    finally:
      if self._summary_writer is not None:
        self._summary_writer.close()
      self._close_writer()

  @abc.abstractmethod
  def train_step(
    self,
    step: int,
    state: TrainState,
    prng_key: jax.Array,
    inputs: Batch,
    static_args: program.BaseStepFnStaticArgs,
  ) -> tuple[int, TrainState, StepOutput]:
    """Returns (next step, new state, output) of one update.

    Args:
      step: Number of the step.
      state: The state that enters the step; it is donated.
      prng_key: PRNG key of training.
      inputs: The global batch on the devices.
      static_args: Arguments that are not traced.
    """

  @abc.abstractmethod
  def eval_train_step(
    self,
    state: TrainState,
    prng_key: jax.Array,
    inputs: Batch,
    static_args: program.BaseStepFnStaticArgs,
  ) -> StepOutput:
    """Returns the evaluation on a training batch.

    Args:
      state: The output of `program.get_eval_train_state`.
      prng_key: PRNG key of evaluation.
      inputs: The global training batch on the devices.
      static_args: Arguments that are not traced.
    """

  def train_input_partition_spec(
    self, inputs: Batch
  ) -> Nested[PartitionSpec] | None:
    """Returns the specs of a training batch; None without a mesh.

    `Partitioner.preprocess_inputs` receives them.
    """
    return self._partitioner.input_partition_specs(inputs)

  def is_resumable(self, step: int) -> bool:
    """Returns whether a job may be saved before `step`, and continue from it.

    Other steps use more than the state and read no batch: the loop makes them
    before it saves or stops.
    """
    del step
    return True

  def _next_batch(self, state: TrainState, step: int) -> Batch:
    """Returns the global batch of `step`; a hook."""
    del state, step
    return self._place(self._train_input.get_next_padded())

  def _place(self, batch: Batch) -> Batch:
    """Returns the global batch of a batch of the input."""
    inp = self._train_input
    if isinstance(inp, prefetch.Prefetcher) and inp.is_transformed:
      return batch
    specs = self.train_input_partition_spec(batch)
    source = prefetch.source_of(inp)
    return program.place_batch(self._partitioner, source, batch, specs)

  def _maybe_write_summaries(
    self,
    step: int,
    new_step: int,
    train_outputs: Any,
    compute_steps_per_sec_interval_steps: int | None = None,
  ) -> float | None:
    """Writes the summaries of a step that are due; returns steps per second.

    Bounds the number of steps in flight. A subclass that overrides `run` calls
    it.

    Args:
      step: Number of the step.
      new_step: Number of the next step.
      train_outputs: The output of `train_step`.
      compute_steps_per_sec_interval_steps: Steps between measurements of the
        speed; None is the interval of the task.

    Returns:
      Steps per second, None between two measurements.

    Raises:
      DivergedError: Too many steps in a row were not finite.
    """
    reporter = self._reporter
    reporter.add(step, train_outputs)
    speed = reporter.measure(new_step, compute_steps_per_sec_interval_steps)
    if reporter.is_summary_due(step):
      scalars = {} if speed is None else {tags.STEPS_PER_SEC: speed}
      self._write_summaries(
        step, lambda: tags.step_summaries(train_outputs) | scalars, _TRAIN
      )
    return speed

  def _maybe_run_eval_train(
    self, new_state: TrainState, new_step: int
  ) -> Mapping[str, float] | None:
    """Evaluates the next training batch; writes and returns its metrics."""
    output = self.run_eval_train(new_state)
    if output is None:
      return None
    self._write_summaries(new_step, tags.step_summaries(output), _EVAL_TRAIN)
    return {k: float(v) for k, (v, _) in output.weighted_scalars.items()}


class SingleTaskTrainProgram(BaseTrainProgram):
  """Trains a task with the compiled steps of its partitioner."""

  def __init__(self) -> None:
    super().__init__()
    self._compiled_step: partitioning.PartitionedStep | None = None
    # The specs of a batch, None without a mesh.
    self._input_specs: Nested[PartitionSpec] | None = None
    self._has_input_specs = False

  @property
  def has_own_step(self) -> bool:
    """Whether a subclass trains by another step than the partitioner's."""
    return program.overrides(
      self, SingleTaskTrainProgram, 'train_step', '_get_train_step'
    )

  @property
  def reads_host_batches(self) -> bool:
    """Whether a subclass converts the batches of hosts to global ones."""
    return program.overrides(
      self,
      SingleTaskTrainProgram,
      'run',
      'train_input_partition_spec',
      '_get_train_step',
    )

  @override
  def locate_nonfinite(
    self, state: TrainState, step: int, batch: Batch
  ) -> nonfinite.NonfiniteReport | None:
    """Runs the step again, compiled with a record of its values.

    None if a subclass has another step.
    """
    if self.has_own_step:
      return None
    # The step selects the random numbers.
    set_step = jax.jit(
      lambda x: jnp.full_like(x, step), out_shardings=state.step.sharding
    )
    return nonfinite.locate(
      self._partitioner.train_step(),
      self._partitioner.mesh,
      state.replace(step=set_step(state.step)),
      self._place(batch),
      self._train_prng_seed,
    )

  @override
  def train_step(
    self,
    step: int,
    state: TrainState,
    prng_key: jax.Array,
    inputs: Batch,
    static_args: program.BaseStepFnStaticArgs,
  ) -> tuple[int, TrainState, StepOutput]:
    """Runs the compiled train step."""
    train_step, _ = self._get_train_step(inputs)
    return step + 1, *train_step(state, prng_key, inputs, static_args)

  @override
  def eval_train_step(
    self,
    state: TrainState,
    prng_key: jax.Array,
    inputs: Batch,
    static_args: program.BaseStepFnStaticArgs,
  ) -> StepOutput:
    """Runs the compiled eval step."""
    eval_step = self._get_eval_train_step(inputs)
    _, output = eval_step(state, prng_key, inputs, static_args)
    return output

  @override
  def train_input_partition_spec(
    self, inputs: Batch
  ) -> Nested[PartitionSpec] | None:
    """Returns the specs of a training batch; None without a mesh."""
    _, spec = self._get_train_step(inputs)
    return spec

  def _get_train_step(
    self, inputs: Batch
  ) -> tuple[Callable[..., Any], Nested[PartitionSpec] | None]:
    """Returns the train step and the specs of its batch.

    Subclasses may return those of `Partitioner.partition`.
    """
    if not self._has_input_specs:
      self._input_specs = self._partitioner.input_partition_specs(inputs)
      self._has_input_specs = True
    return self._run_train_step, self._input_specs

  def _get_eval_train_step(self, inputs: Batch) -> Callable[..., Any]:
    """Returns the eval step; subclasses may return another."""
    del inputs
    return program.eval_step_with_static_args(
      self._partitioner, self._partitioner.eval_step_for
    )

  def _run_train_step(
    self,
    state: TrainState,
    prng_key: jax.Array,
    inputs: Batch,
    static_args: program.BaseStepFnStaticArgs | None = None,
  ) -> tuple[TrainState, StepOutput]:
    del static_args
    inputs = program.on_mesh(self._partitioner, inputs)
    if self._compiled_step is None:
      self._compiled_step = self._partitioner.train_step_for(inputs)
    return self._compiled_step(state, inputs, prng_key)
