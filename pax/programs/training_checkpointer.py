# SPDX-License-Identifier: Apache-2.0
"""The checkpointer of an executor, with paxml's interface."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
from absl import logging

from pax import (
  checkpoints,
  io_utils,
  partitioning,
  summaries,
  tasks_lib,
  train_states,
)
from pax.checkpoints import paths
from pax.checkpoints import training_checkpointer as interface
from pax.inputs import prefetch
from pax.programs import initial_state
from pax.programs.job_services import JobServices
from pax.programs.stopping.preemption import PreemptedError
from praxis import base_input
from praxis.base_input import data_fingerprints

TrainState = train_states.TrainState

goodput = summaries.goodput


class TrainingCheckpointer(interface.TrainingCheckpointer):
  """Restores and saves the state of a training job.

  A loop that calls `save_if_needed` before each step is stopped by a signal as
  the loop of Pax: before the next step, with its state saved. With
  `--noexit_after_ondemand_checkpoint` SIGTERM saves and does not stop it.
  """

  def __init__(self, services: JobServices):
    """Takes the services of the job, which executors may use."""
    self.services = services
    self._step_to_restore = services.checkpoints.latest_step()
    self._num_train_steps: int | None = None
    self._is_stopping = False
    # Whether a signal is the reason of the last save.
    self._is_preempted = False
    self._has_resumed = False
    # The time between two calls is that of steps.
    self._activity = contextlib.ExitStack()

  @property
  def step_to_restore(self) -> int | None:
    """Step of the checkpoint to restore; None if there is none."""
    return self._step_to_restore

  @property
  def checkpoint_type(self) -> checkpoints.CheckpointType:
    """The format of new checkpoints."""
    return self.services.checkpoint_type

  def get_model_states(
    self,
    partitioner: partitioning.Partitioner,
    metadata: Any,
    root_prng_key: jax.Array,
    train_input_pipeline: base_input.BaseInput | None = None,
  ) -> tuple[TrainState, TrainState | None, int, jax.Array]:
    """Restores the newest checkpoint of the job, or initializes its state.

    Args:
      partitioner: The partitioner of the task, set up.
      metadata: Unused: the partitioner has the shapes and shardings.
      root_prng_key: PRNG key of the job; variables are initialized with the
        `random_seed` of the task.
      train_input_pipeline: The training input, whose state is restored too;
        None restores none.

    Returns:
      The state, the origin of its arrays (None if it is restored), the number
      of parameters, and the key.
    """
    del metadata
    services = self.services
    io_utils.clear_training_end(services.job_log_dir)
    task = partitioner.task
    self._num_train_steps = int(task.train.num_train_steps)
    if task.train.save_frozen_variables_once:
      services.checkpoints.set_frozen_leaves(_frozen_leaves(partitioner))
    if self._step_to_restore is None:
      state, provenance = initial_state.create(
        partitioner,
        services.job_log_dir,
        services.progress.print,
        services.init_from,
      )
    else:
      state, provenance = self._restore(partitioner, train_input_pipeline), None
    return state, provenance, partitioner.num_params, root_prng_key

  def save_if_needed(
    self,
    step_i: int,
    partitioned_train_state: TrainState,
    train_state_unpadded_shape_dtype_struct: Any = None,
    train_state_pspecs: Any = None,
    train_input_pipeline: base_input.BaseInput | None = None,
  ) -> None:
    """Saves the state if it is due, on demand, or if the job has to stop.

    Args:
      step_i: The step that the state enters.
      partitioned_train_state: The state.
      train_state_unpadded_shape_dtype_struct: Unused: no array is padded.
      train_state_pspecs: Unused: the arrays have their shardings.
      train_input_pipeline: The training input, whose state is saved too.

    Raises:
      PreemptedError: The job has to stop; its state is saved.
      CheckpointError: A checkpoint cannot be written.
    """
    del train_state_unpadded_shape_dtype_struct, train_state_pspecs
    preemption, recorder = self.services.preemption, self.services.goodput
    if not self._has_resumed:
      recorder.mark_resumed(step_i)
      self._has_resumed = True
    recorder.mark_step(step_i)
    has_next = self._num_train_steps is None or step_i < self._num_train_steps
    self._is_stopping = preemption.stop_requested() and has_next
    self._is_preempted = preemption.save_requested() or self._is_stopping
    if self._is_stopping:
      preemption.begin_saving()
    self._save(
      step_i,
      partitioned_train_state,
      train_input_pipeline,
      force=self._is_preempted,
    )
    if self._is_stopping:
      self.wait_until_finished()
      raise PreemptedError

  def save_final(
    self,
    step_i: int,
    *,
    partitioned_train_state: TrainState,
    train_state_unpadded_shape_dtype_struct: Any = None,
    train_state_pspecs: Any = None,
    train_input_pipeline: base_input.BaseInput | None = None,
  ) -> None:
    """Saves the state after the last step, unless it is saved.

    Args:
      step_i: The step that the state enters.
      partitioned_train_state: The state.
      train_state_unpadded_shape_dtype_struct: Unused: no array is padded.
      train_state_pspecs: Unused: the arrays have their shardings.
      train_input_pipeline: The training input, whose state is saved too.

    Raises:
      CheckpointError: A checkpoint cannot be written.
    """
    del train_state_unpadded_shape_dtype_struct, train_state_pspecs
    self.services.preemption.begin_saving()
    self._save(
      step_i, partitioned_train_state, train_input_pipeline, force=True
    )
    self.wait_until_finished()
    self.services.goodput.mark_finished()
    if self._num_train_steps is not None and step_i < self._num_train_steps:
      # Jobs that follow the checkpoints would wait for the last step.
      io_utils.record_training_end(self.services.job_log_dir, step_i)

  def reached_preemption(self, step: int) -> bool:
    """Returns whether `save_if_needed` saved the state because of a signal."""
    del step
    return self._is_preempted

  def wait_until_finished(self) -> None:
    """Waits until all checkpoints are complete; raises their errors."""
    with self.services.goodput.record(goodput.CHECKPOINT):
      self.services.checkpoints.wait()

  def close(self) -> None:
    """Waits until all checkpoints are complete; the runner closes the rest."""
    self.wait_until_finished()
    self._activity.close()

  def _restore(
    self,
    partitioner: partitioning.Partitioner,
    train_input: base_input.BaseInput | None,
  ) -> TrainState:
    restored = self.services.checkpoints.restore(
      initial_state.restore_target(partitioner)
    )
    if train_input is not None and restored.input_state is not None:
      self._restore_input(train_input, restored.input_state)
    self._step_to_restore = restored.step
    if (step := int(restored.state.step)) != restored.step:
      logging.warning(
        'the checkpoint of step %d in %s has the state of step %d, at which'
        ' training goes on; if you renamed it, give it back its name: restarts'
        ' take the checkpoint with the highest step in its name',
        restored.step,
        self.services.job_log_dir,
        step,
      )
    return restored.state

  def _restore_input(
    self, train_input: base_input.BaseInput, state: base_input.State
  ) -> None:
    try:
      train_input.set_state(state)
    except data_fingerprints.ChangedDataError as e:
      if not self.services.accept_changed_data:
        raise
      logging.warning('The changed data are accepted: %s', e.changes)
      train_input.set_state(data_fingerprints.detach_all(state))

  def _save(
    self,
    step: int,
    state: TrainState,
    train_input: base_input.BaseInput | None,
    *,
    force: bool,
  ) -> None:
    services = self.services
    if services.checkpoints.is_due(step, force=force):
      # The copy of the state to the host would wait for the steps.
      jax.block_until_ready(state)
    self._activity.close()
    input_state = None
    if train_input is not None:
      input_state = prefetch.state_of(train_input)
    with services.goodput.record(goodput.CHECKPOINT):
      is_saved = services.checkpoints.save(
        step, state, input_state, force=force
      )
    if is_saved:
      services.goodput.mark_saved(step)
    self._activity.enter_context(services.goodput.record(goodput.STEP))


def _frozen_leaves(partitioner: partitioning.Partitioner) -> list[str]:
  """Returns the names of the variables that no step changes."""
  mask = tasks_lib.get_frozen_var_mask(
    partitioner.var_weight_hparams, partitioner.task.learners[0]
  )
  is_frozen = paths.flatten({'mdl_vars': mask})
  return [name for name, frozen in is_frozen.items() if frozen]
