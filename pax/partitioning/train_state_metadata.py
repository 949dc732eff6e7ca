# SPDX-License-Identifier: Apache-2.0
"""Shapes and partition specs of a train state."""

from __future__ import annotations

import dataclasses

import jax
from jax.sharding import PartitionSpec

from pax import tasks_lib, train_states
from pax.steps.declared_variables import declare_variables
from pax.train_states import Variables
from praxis import base_layer
from praxis.pytypes import Nested

TrainState = train_states.TrainState


@dataclasses.dataclass(frozen=True)
class TrainStateMetadata:
  """Shapes and partitions of a train state, known before its values are."""

  # Shapes of the batch from which the variables are declared.
  input_shape_dtype: Nested[jax.ShapeDtypeStruct]
  # WeightHParams of each variable.
  var_weight_hparams: Variables[base_layer.WeightHParams]
  # Global shapes; equal, because no array is padded. Those of a partitioner
  # have the shardings between steps.
  padded_global_shapes: TrainState[jax.ShapeDtypeStruct] | None = None
  unpadded_global_shapes: TrainState[jax.ShapeDtypeStruct] | None = None
  # Specs within steps; None without a mesh.
  partition_specs: TrainState[PartitionSpec] | None = None

  def to_eval(self) -> TrainStateMetadata:
    """Returns the metadata without optimizer states."""

    def discard(state: TrainState | None) -> TrainState | None:
      return None if state is None else state.to_eval_state()

    return dataclasses.replace(
      self,
      padded_global_shapes=discard(self.padded_global_shapes),
      unpadded_global_shapes=discard(self.unpadded_global_shapes),
      partition_specs=discard(self.partition_specs),
    )


def create_train_state_metadata(
  jax_task: tasks_lib.SingleTask,
  train_shape_dtype: Nested[jax.ShapeDtypeStruct],
  discard_opt_states: bool = False,
  do_eval: bool = False,
) -> TrainStateMetadata:
  """Returns the shapes and partitions of a task's train state.

  Args:
    jax_task: The task.
    train_shape_dtype: Shapes of a batch, from which variables are declared.
    discard_opt_states: Whether to leave out the optimizer states.
    do_eval: Whether variables are declared in evaluation mode.
  """
  hparams = declare_variables(
    jax_task.model, train_shape_dtype, do_eval=do_eval
  )
  return TrainStateMetadata(
    input_shape_dtype=train_shape_dtype,
    var_weight_hparams=hparams,
    padded_global_shapes=jax_task.create_train_state_padded_shapes(
      hparams, discard_opt_states
    ),
    unpadded_global_shapes=jax_task.create_train_state_unpadded_shapes(
      hparams, discard_opt_states
    ),
    partition_specs=jax_task.create_train_state_partition_specs(
      hparams, discard_opt_states
    ),
  )
