# SPDX-License-Identifier: Apache-2.0
"""Functions of a user that replace parts of the train step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import jax
from jaxtyping import Array, Float

from pax import learners
from pax.train_states import Variables
from praxis import base_model, pytypes
from praxis.pytypes import Nested

NestedMap = pytypes.NestedMap


class ApplyFnProtocol(Protocol):
  """Applies a model to a batch."""

  def __call__(
    self,
    model: base_model.BaseModel,
    variables: Variables[jax.Array],
    inputs: NestedMap,
    mutable: Sequence[str],
    rngs: dict[str, jax.Array],
  ) -> tuple[Any, Nested[jax.Array]]:
    """Returns the outputs of the model and the updated variables."""


class LossFnProtocol(Protocol):
  """Computes the loss of a batch."""

  def __call__(
    self, mdl_vars: Variables[jax.Array], inputs: NestedMap, prng_key: jax.Array
  ) -> tuple[Float[Array, ''], learners.GradAuxInfo]:
    """Returns the loss and auxiliary outputs."""


class GradFnProtocol(Protocol):
  """Differentiates a loss."""

  def __call__(
    self,
    loss_fn: LossFnProtocol,
    learner: learners.Learner,
    mdl_vars: Variables[jax.Array],
    inputs: NestedMap,
    prng_key: jax.Array,
  ) -> tuple[tuple[Float[Array, ''], learners.GradAuxInfo], Nested[jax.Array]]:
    """Returns ((loss, auxiliary outputs), gradients)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainStepHooks:
  """Replaced parts of the train step."""

  # Computes the gradients; None is the learner's gradient function.
  grad_fn: GradFnProtocol | None = None
  # Applies the model; None calls it.
  apply_fn: ApplyFnProtocol | None = None
  # Whether the optimizer has the non-trainable variables of this step's forward
  # pass instead of those of the previous step.
  expose_updated_nontrainables: bool = True
