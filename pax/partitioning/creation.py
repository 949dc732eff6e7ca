# SPDX-License-Identifier: Apache-2.0
"""Selects the partitioner of a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax

from pax import base_experiment, steps, tasks_lib
from pax.partitioning import pjit_partitioner
from pax.partitioning.partitioner import Partitioner
from pax.partitioning.pjit_partitioner import PjitPartitioner, TaskOrConfig
from pax.partitioning.pmap_partitioner import PmapPartitioner
from pax.partitioning.step_protocols import StepFn
from pax.steps import single_learner
from praxis import base_input, pax_fiddle

InputConfig = pax_fiddle.Config[base_input.BaseInput]


class Mode(Protocol):
  """A `RunningMode`: which of training, evaluation and decoding run."""

  @property
  def has_train(self) -> bool: ...

  @property
  def has_eval(self) -> bool: ...

  @property
  def has_decode(self) -> bool: ...


def create_partitioner(
  jax_task: TaskOrConfig,
  init_is_eval: bool = False,
  reshard_inputs: bool = False,
  auto_sharding_mode: Mode | None = None,
  auto_sharding_input_params: InputConfig | None = None,
  *,
  devices: Sequence[jax.Device] | None = None,
) -> Partitioner:
  """Returns the partitioner of a task, to be set up.

  A model with `ici_mesh_shape` runs SPMD, otherwise in data-parallel replicas.

  Args:
    jax_task: The task, or its Config.
    init_is_eval: Whether variables are declared in evaluation mode, unless
      `task.train.always_use_train_for_model_init` is set.
    reshard_inputs: Whether `preprocess_inputs` places batches on the mesh.
    auto_sharding_mode: Must be None for a model with a mesh.
    auto_sharding_input_params: Unused.
    devices: The devices; None is all.

  Raises:
    NotImplementedError: `auto_sharding_mode` is set.
    ValueError: The mesh does not fit the devices.
  """
  del auto_sharding_input_params
  if jax_task.model.ici_mesh_shape is None:
    return PmapPartitioner(init_is_eval, devices=devices)
  if auto_sharding_mode:
    pjit_partitioner.raise_no_auto_sharding('auto_sharding_mode')
  mesh = pjit_partitioner.create_model_mesh(jax_task.model, devices)
  return PjitPartitioner(init_is_eval, reshard_inputs, jax_task, mesh.devices)


def partition_task(
  task: TaskOrConfig,
  host_spec: steps.Batch,
  *,
  devices: Sequence[jax.Device] | None = None,
) -> Partitioner:
  """Returns the partitioner of a task, set up.

  Args:
    task: The task, or its Config.
    host_spec: Shapes and dtypes of the training batch of one host.
    devices: The devices; None is all.

  Raises:
    ValueError: The mesh does not fit the devices, or the batch the mesh.
  """
  if isinstance(task, pax_fiddle.Config):
    task = task.Instantiate()
  partitioner = create_partitioner(task, devices=devices)
  partitioner.setup(task, None, partitioner.init_spec(host_spec))
  return partitioner


def create_experiment_or_default_partitioner(
  *,
  experiment_config: base_experiment.BaseExperiment,
  jax_task: tasks_lib.SingleTask,
  running_mode: Mode,
  checkpoint_type: Any,
  input_p: InputConfig | None,
  enable_auto_sharding: bool,
  init_is_eval: bool = False,
) -> Partitioner:
  """Returns the partitioner of an experiment, or else the default one.

  Args:
    experiment_config: The experiment.
    jax_task: Its task.
    running_mode: What the partitioner is used for.
    checkpoint_type: Unused: batches are always placed on the mesh.
    input_p: The Config of the input.
    enable_auto_sharding: Must be False for a model with a mesh.
    init_is_eval: Whether variables are declared in evaluation mode.

  Raises:
    NotImplementedError: `enable_auto_sharding` is set.
  """
  del checkpoint_type
  partitioner = experiment_config.partitioner()
  if partitioner is not None:
    return partitioner
  return create_partitioner(
    jax_task,
    init_is_eval=init_is_eval,
    reshard_inputs=True,
    auto_sharding_mode=running_mode if enable_auto_sharding else None,
    auto_sharding_input_params=input_p if enable_auto_sharding else None,
  )


def get_step_fn(mode: Mode) -> tuple[StepFn, bool]:
  """Returns the step function of a mode, and whether it leaves the state.

  Args:
    mode: Exactly one of training, evaluation and decoding.

  Raises:
    ValueError: It is none or several of them.
  """
  choices: tuple[tuple[bool, StepFn, bool], ...] = (
    (mode.has_train, single_learner.train_step_single_learner, False),
    (mode.has_eval, single_learner.eval_step_single_learner, True),
    (mode.has_decode, single_learner.decode_step_single_learner, True),
  )
  selected = [(step, is_eval) for has, step, is_eval in choices if has]
  if len(selected) != 1:
    raise ValueError(
      f'mode must be exactly one of TRAIN, EVAL and DECODE, got {mode}; call'
      ' get_step_fn once for each'
    )
  return selected[0]
