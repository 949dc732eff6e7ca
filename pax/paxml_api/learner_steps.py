# SPDX-License-Identifier: Apache-2.0
"""Train, eval and decode steps as functions of a task, and their protocols.

A run goes through `pax.partitioning`; these functions serve tests and notebooks
that hold a task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import jax
from jaxtyping import Array, Float

from pax import learners, steps, tasks_lib, train_states
from praxis import base_layer, base_model, pytypes

Nested = pytypes.Nested
NestedMap = pytypes.NestedMap
TrainState = train_states.TrainState
Task = tasks_lib.SingleTask
OutputT = TypeVar('OutputT')


class ApplyFnProtocol(Protocol):
  """Applies a model to a batch."""

  def __call__(
    self,
    model: base_model.BaseModel,
    variables: Nested[jax.Array],
    inputs: NestedMap,
    mutable: Sequence[str],
    rngs: dict[str, jax.Array],
  ) -> tuple[Any, Nested[jax.Array]]:
    """Returns the outputs of the model and the updated variables."""


class LossFnProtocol(Protocol):
  """Computes the loss of a batch."""

  def __call__(
    self, mdl_vars: Nested[jax.Array], inputs: NestedMap, prng_key: jax.Array
  ) -> tuple[Float[Array, ''], learners.GradAuxInfo]:
    """Returns the loss and auxiliary outputs."""


class GradFnProtocol(Protocol):
  """Differentiates a loss."""

  def __call__(
    self,
    loss_fn: LossFnProtocol,
    learner: learners.Learner,
    mdl_vars: Nested[jax.Array],
    inputs: NestedMap,
    prng_key: jax.Array,
  ) -> tuple[tuple[Float[Array, ''], learners.GradAuxInfo], Nested[jax.Array]]:
    """Returns ((loss, auxiliary outputs), gradients)."""


@dataclasses.dataclass(frozen=True)
class SingleLearnerStep(Generic[OutputT]):
  """A step of `pax.steps` with paxml's order of arguments."""

  step: Callable[..., OutputT]

  def __call__(
    self,
    jax_task: Task,
    states: TrainState,
    prng_key: jax.Array,
    inputs: NestedMap,
    var_weight_hparams: Nested[base_layer.WeightHParams] | None = None,
  ) -> OutputT:
    """Returns the outputs of the step.

    Args:
      jax_task: The task.
      states: The state; only training reads optimizer states.
      prng_key: Key of the step.
      inputs: The batch.
      var_weight_hparams: WeightHParams of the variables; None derives them from
        the batch.
    """
    if var_weight_hparams is None:
      var_weight_hparams = jax_task.model.abstract_init_with_metadata(inputs)
    return self.step(
      jax_task, states, inputs, prng_key, var_weight_hparams=var_weight_hparams
    )


# Returns the state after one update, and the outputs of the step.
train_step_single_learner = SingleLearnerStep(steps.train_step)
# Returns the metrics of the model on a batch.
eval_step_single_learner = SingleLearnerStep(steps.eval_step)
# Returns the decoder's outputs on a batch.
decode_step = SingleLearnerStep(steps.decode_step)
