# SPDX-License-Identifier: Apache-2.0
"""Train states of a task: arrays, shapes and partition specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pax import learners as learners_lib
from pax import train_states
from pax.train_states import Variables
from praxis import (
  base_layer,
  optimizer_prefix_vectorization,
  optimizers,
  py_utils,
  pytypes,
)
from praxis.pytypes import Nested

JTensor = pytypes.JTensor
TrainState = train_states.TrainState
Learners = Sequence[learners_lib.Learner]


def create_opt_states(
  mdl_vars: Nested[JTensor],
  var_weight_hparams: Variables[base_layer.WeightHParams],
  learners: Learners,
) -> list[Nested[JTensor]]:
  """Returns the initial optimizer state of each learner."""
  return [
    learner.get_grad_tx(var_weight_hparams).init(mdl_vars)
    for learner in learners
  ]


def create_state(
  mdl_vars: Variables[JTensor],
  var_weight_hparams: Variables[base_layer.WeightHParams],
  discard_opt_states: bool,
  learners: Learners | None,
) -> TrainState:
  """Returns the train state at step 0.

  Args:
    mdl_vars: The variables.
    var_weight_hparams: WeightHParams of the variables.
    discard_opt_states: Whether to leave out the optimizer states.
    learners: One learner for each optimizer state; None if they are left out.
  """
  opt_states = []
  if not discard_opt_states:
    opt_states = create_opt_states(mdl_vars, var_weight_hparams, learners or ())
  return TrainState(
    step=jnp.zeros([], jnp.uint32), mdl_vars=mdl_vars, opt_states=opt_states
  )


def create_state_unpadded_shapes(
  var_weight_hparams: Variables[base_layer.WeightHParams],
  discard_opt_states: bool,
  learners: Learners | None,
) -> TrainState:
  """Returns the train state with a ShapeDtypeStruct for each array."""
  return jax.eval_shape(
    lambda mdl_vars: create_state(
      mdl_vars, var_weight_hparams, discard_opt_states, learners
    ),
    abstract_vars(var_weight_hparams),
  )


def create_state_padded_shapes(
  var_weight_hparams: Variables[base_layer.WeightHParams],
  mesh_shape: Sequence[int] | None,
  mesh_axis_names: Sequence[str],
  discard_opt_states: bool,
  learners: Learners | None,
) -> TrainState:
  """Returns the shapes of the train state, padded to divide over the mesh.

  Training itself pads no array: a dimension that the mesh does not divide is
  not split.

  Args:
    var_weight_hparams: WeightHParams of the variables.
    mesh_shape: Shape of the mesh; None pads nothing.
    mesh_axis_names: Names of its axes.
    discard_opt_states: Whether to leave out the optimizer states.
    learners: One learner for each optimizer state.
  """
  shapes = create_state_unpadded_shapes(
    var_weight_hparams, discard_opt_states, learners
  )
  if mesh_shape is None:
    return shapes
  specs = create_state_partition_specs(
    var_weight_hparams,
    mesh_shape,
    mesh_axis_names,
    discard_opt_states,
    learners,
  )

  def pad(
    leaf: jax.ShapeDtypeStruct, spec: jax.sharding.PartitionSpec
  ) -> jax.ShapeDtypeStruct:
    paddings = py_utils.get_uneven_sharding_paddings(
      spec, leaf.shape, mesh_shape, mesh_axis_names
    )
    shape = [
      size + padding for size, padding in zip(leaf.shape, paddings, strict=True)
    ]
    return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype)

  return jax.tree.map(pad, shapes, specs)


def create_state_partition_specs(
  var_weight_hparams: Variables[base_layer.WeightHParams],
  mesh_shape: Sequence[int],
  mesh_axis_names: Sequence[str] | None,
  discard_opt_states: bool,
  learners: Learners | None,
  opt_states: Sequence[Nested[Any]] | None = None,
) -> TrainState:
  """Returns the train state with a PartitionSpec for each array.

  Args:
    var_weight_hparams: WeightHParams of the variables.
    mesh_shape: Shape of the mesh.
    mesh_axis_names: Names of its axes.
    discard_opt_states: Whether to leave out the optimizer states.
    learners: One learner for each optimizer state; None if they are left out.
    opt_states: Shapes of the optimizer states; required by a learner whose
      gradient transformation is of Optax and declares no state.
  """

  def specs(hparams: Any) -> Any:  # In the structure of `hparams`.
    return base_layer.var_partition_specs(hparams, mesh_shape, mesh_axis_names)

  hparams = []
  if not discard_opt_states:
    learners = learners or ()
    hparams = [
      _opt_state_hparams(learner, var_weight_hparams, states)
      for learner, states in zip(
        learners, opt_states or [None] * len(learners), strict=True
      )
    ]
  return TrainState(
    step=jax.sharding.PartitionSpec(),
    mdl_vars=specs(var_weight_hparams),
    opt_states=[specs(states) for states in hparams],
  )


def _opt_state_hparams(
  learner: learners_lib.Learner,
  var_weight_hparams: Variables[base_layer.WeightHParams],
  states: Nested[jax.ShapeDtypeStruct] | None,
) -> Nested[base_layer.WeightHParams]:
  """Returns the WeightHParams of a learner's optimizer state.

  Args:
    learner: The learner.
    var_weight_hparams: WeightHParams of the variables.
    states: Shapes of the state, or None.

  Raises:
    ValueError: Neither the learner nor `states` defines the state.
  """
  grad_tx = learner.get_grad_tx(var_weight_hparams)
  if isinstance(grad_tx, optimizers.ShardedGradientTransformation):
    return grad_tx.init_partition_spec(var_weight_hparams)
  if states is None:
    raise ValueError(
      f'opt_states must be given for {type(grad_tx).__name__} of the learner'
      f' {learner.name!r}, which declares no state; got None'
    )
  return optimizer_prefix_vectorization.partition_params(
    grad_tx, var_weight_hparams, states
  )


def abstract_vars(
  var_weight_hparams: Variables[base_layer.WeightHParams],
) -> Nested[jax.ShapeDtypeStruct]:
  """Returns the shapes and dtypes of the variables."""
  return jax.tree.map(
    lambda weight: jax.ShapeDtypeStruct(tuple(weight.full_shape), weight.dtype),
    var_weight_hparams,
  )
