# SPDX-License-Identifier: Apache-2.0
"""The first value of a task's train state.

A run goes through `pax.partitioning`; these functions serve tests and notebooks
that hold a task.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pax import learners, partitioning, tasks_lib, train_states
from pax.checkpoints import init_from
from pax.partitioning import initialize, specs
from pax.steps.declared_variables import declare_variables
from pax.train_states import Variables
from praxis import base_layer
from praxis.pytypes import Nested

TrainState = train_states.TrainState
TrainStateProvenance = train_states.TrainStateProvenance
Task = tasks_lib.SingleTask


def initialize_model_state(
  jax_task: Task,
  prng_key: jax.Array,
  inputs_shape_dtype: Nested[jax.ShapeDtypeStruct],
  discard_opt_states: bool = False,
  do_init_checkpoint_rules: bool = True,
  is_eval: bool = False,
  checkpoint_type: Any = None,
  var_weight_hparams: Variables[base_layer.WeightHParams] | None = None,
) -> tuple[TrainState, TrainStateProvenance]:
  """Returns a new state on one device, and the origin of each array.

  Args:
    jax_task: The task.
    prng_key: Key of the initializers.
    inputs_shape_dtype: Shapes of a batch, from which variables are declared.
    discard_opt_states: Whether to leave out the optimizer states.
    do_init_checkpoint_rules: Whether the `init_from_checkpoint_rules` of the
      task apply.
    is_eval: Whether variables are declared in evaluation mode, unless
      `task.train.always_use_train_for_model_init` is set.
    checkpoint_type: Unused: the files of a checkpoint have their format.
    var_weight_hparams: WeightHParams of the variables; None derives them.
  """
  del checkpoint_type
  do_eval = is_eval and not jax_task.train.always_use_train_for_model_init
  hparams = var_weight_hparams or declare_variables(
    jax_task.model, inputs_shape_dtype, do_eval=do_eval
  )
  mesh = Mesh(np.array(jax.local_devices()[:1]), ('device',))
  sharding = NamedSharding(mesh, PartitionSpec())
  metadata = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
    jax_task.create_train_state_unpadded_shapes(hparams, discard_opt_states),
  )
  initializer = initialize.StateInitializer(
    task=jax_task,
    var_weight_hparams=hparams,
    metadata=metadata,
    batch=inputs_shape_dtype,
    do_eval=do_eval,
  )
  return _initialize(initializer, prng_key, has_rules=do_init_checkpoint_rules)


def initialize_partitioned_model_states(
  jax_task: Task,
  prng_key: jax.Array,
  global_input_shapes: Nested[jax.ShapeDtypeStruct],
  state_specs: TrainState[PartitionSpec],
  discard_opt_states: bool = False,
  global_mesh: Mesh | None = None,
  checkpoint_type: Any = None,
  do_init_checkpoint_rules: bool = True,
  var_weight_hparams: Variables[base_layer.WeightHParams] | None = None,
  is_eval: bool = False,
) -> tuple[TrainState, TrainStateProvenance]:
  """Returns a new state on a mesh, and the origin of each array.

  Args:
    jax_task: The task.
    prng_key: Key of the initializers.
    global_input_shapes: Shapes of a batch, from which variables are declared.
    state_specs: The spec of each array of the state.
    discard_opt_states: Whether to leave out the optimizer states.
    global_mesh: The mesh; None is that of the model over all devices.
    checkpoint_type: Unused: the files of a checkpoint have their format.
    do_init_checkpoint_rules: Whether the `init_from_checkpoint_rules` of the
      task apply.
    var_weight_hparams: WeightHParams of the variables; None derives them.
    is_eval: Whether variables are declared in evaluation mode.
  """
  del checkpoint_type
  hparams = var_weight_hparams or declare_variables(
    jax_task.model, global_input_shapes, do_eval=is_eval
  )
  mesh = global_mesh
  if mesh is None:
    mesh = partitioning.create_partitioner(jax_task).mesh
  metadata = specs.state_shardings(
    state_specs.to_eval_state() if discard_opt_states else state_specs,
    jax_task.create_train_state_unpadded_shapes(hparams, discard_opt_states),
    mesh,
  )
  initializer = initialize.StateInitializer(
    task=jax_task,
    var_weight_hparams=hparams,
    metadata=metadata,
    batch=global_input_shapes,
    do_eval=is_eval,
  )
  with jax.set_mesh(mesh):
    return _initialize(
      initializer, prng_key, has_rules=do_init_checkpoint_rules
    )


def initialize_replicate_model_state(
  jax_task: Task,
  prng_key: jax.Array,
  inputs_shape_dtype: Nested[jax.ShapeDtypeStruct],
  discard_opt_states: bool = False,
) -> TrainState:
  """Returns a new state as `jax.pmap` takes it.

  Args:
    jax_task: The task.
    prng_key: Key of the initializers.
    inputs_shape_dtype: Shapes of a batch, from which variables are declared.
    discard_opt_states: Whether to leave out the optimizer states.
  """
  state, _ = initialize_model_state(
    jax_task, prng_key, inputs_shape_dtype, discard_opt_states
  )
  return replicate_model_state(state)


def replicate_model_state(model_states: TrainState) -> TrainState:
  """Returns arrays [local devices, ...] with a copy of each array per device.

  This is the form that `jax.pmap` takes. Arrays on several devices are kept.
  """
  devices = jax.local_devices()
  mesh = Mesh(np.array(devices), ('device',))
  sharding = NamedSharding(mesh, PartitionSpec('device'))

  def replicate(x: Any) -> jax.Array:
    if isinstance(x, jax.Array) and len(x.devices()) > 1:
      return x
    row = x[None] if isinstance(x, jax.Array) else np.asarray(x)[None]
    return jax.make_array_from_single_device_arrays(
      (len(devices), *row.shape[1:]),
      sharding,
      [jax.device_put(row, device) for device in devices],
    )

  return jax.tree.map(replicate, model_states)


def get_excluded_var_masks(
  var_weight_hparams: Variables[base_layer.WeightHParams],
  learner: learners.Learner,
) -> tuple[Nested[bool], Nested[bool]]:
  """Returns masks of the variables without gradient and without opt state."""
  return (
    tasks_lib.get_excluded_var_mask_for_grad(var_weight_hparams, learner),
    tasks_lib.get_excluded_var_mask_for_opt(var_weight_hparams, learner),
  )


def _initialize(
  initializer: initialize.StateInitializer, key: jax.Array, *, has_rules: bool
) -> tuple[TrainState, TrainStateProvenance]:
  """Returns a state, with what the rules of the task load, and its origins."""
  loader = init_from.LeafLoader(initializer.metadata, logging.info)
  if has_rules and (rules := initializer.task.init_from_checkpoint_rules()):
    loader.select_by_rules(rules)
  return initializer.state(key, loader.read()), loader.provenance_tree
