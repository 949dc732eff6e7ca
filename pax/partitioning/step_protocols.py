# SPDX-License-Identifier: Apache-2.0
"""Signatures of step functions before and after partitioning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from pax import tasks_lib, train_states
from pax.steps import BaseStepFnStaticArgs, Batch, StepFnOutput
from pax.train_states import Variables
from praxis import base_layer

TrainState = train_states.TrainState

# (state, batch, key) -> outputs.
BoundStep = Callable[[TrainState, Batch, jax.Array], Any]


class StepFn(Protocol):
  """A step that `Partitioner.partition` takes."""

  def __call__(
    self,
    jax_task: tasks_lib.SingleTask,
    train_state: TrainState,
    prng_key: jax.Array,
    inputs: Batch,
    fprop_dtype: jnp.dtype,
    var_weight_hparams: Variables[base_layer.WeightHParams],
    static_args: BaseStepFnStaticArgs | None = None,
    /,
  ) -> tuple[TrainState | None, StepFnOutput]:
    """Returns the new state, None unless the step trains, and the output.

    Args:
      jax_task: The task.
      train_state: The state.
      prng_key: PRNG key; of a model without mesh that of one replica.
      inputs: The global batch; of a model without mesh that of one replica.
      fprop_dtype: dtype of activations.
      var_weight_hparams: WeightHParams of the variables.
      static_args: Arguments that are not traced.
    """


class PartitionedStepFn(Protocol):
  """A step that `Partitioner.partition` returns."""

  def __call__(
    self,
    train_state: TrainState,
    prng_key: jax.Array,
    inputs: Batch,
    static_args: BaseStepFnStaticArgs | None = None,
  ) -> tuple[TrainState | None, StepFnOutput]:
    """Returns the new state, None unless the step trains, and the output.

    Args:
      train_state: The state; a train step donates it.
      prng_key: PRNG key.
      inputs: The global batch, or the batch of this host.
      static_args: Arguments that are not traced; a new value compiles anew.
    """
