# SPDX-License-Identifier: Apache-2.0
"""What a step needs besides state, batch and key."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from pax import tasks_lib
from pax.steps.hooks import TrainStepHooks
from pax.train_states import Variables
from praxis import base_layer


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepSettings:
  """The task of a step, its variables, and where and how it runs."""

  task: tasks_lib.SingleTask
  # WeightHParams of each variable of the state.
  var_weight_hparams: Variables[base_layer.WeightHParams]
  # Mesh axis of the replicas; None for SPMD.
  axis_name: str | None = None
  # dtype of activations, float32 or bfloat16; None is that of the model.
  fprop_dtype: jnp.dtype | None = None
  # Steps between norms of variables in summaries; they are 0 in other steps.
  variable_norm_interval: int = 1
  # Replaced parts of the train step.
  hooks: TrainStepHooks = TrainStepHooks()

  @property
  def activation_dtype(self) -> jnp.dtype:
    """dtype of activations."""
    if self.fprop_dtype is None:
      return self.task.model.fprop_dtype
    return self.fprop_dtype
