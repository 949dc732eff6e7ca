# SPDX-License-Identifier: Apache-2.0
"""The interface of gradient functions, and plain differentiation."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
from typing_extensions import override

from pax.learners import privacy
from pax.train_states import Variables
from praxis import base_hyperparams, base_layer, pytypes
from praxis.pytypes import Nested

JTensor = pytypes.JTensor
NestedMap = pytypes.NestedMap


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GradAuxInfo:
  """Auxiliary outputs of a loss function."""

  # A pytree of arrays.
  aux_info: Any
  # Weight of the loss; under pmap, the share of this replica in the total.
  loss_weight: JTensor | float = 1.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DPGradAuxInfo(GradAuxInfo):
  """Auxiliary outputs of a differentially private gradient function."""

  # Fraction of clipped gradients and scale of the noise, for summaries.
  dp_aux_info: Any = None


# Maps (differentiated variables, (other variables, batch), key) to (loss,
# GradAuxInfo). Under pmap, the losses of the replicas sum to the mean loss.
LossFn = Callable[
  [Variables[JTensor], tuple[Variables[JTensor], NestedMap], pytypes.PRNGKey],
  tuple[JTensor, GradAuxInfo],
]
# ((loss, auxiliary outputs), gradients); gradients sum over replicas.
Gradients = tuple[tuple[JTensor, GradAuxInfo], Nested[JTensor]]


def with_context(loss_fn: LossFn, **settings: Any) -> LossFn:
  """Returns a loss that is computed with changed settings of the JaxContext."""
  current = base_layer.cur_jax_context().hparams
  hparams = dataclasses.replace(current, **settings)

  def loss_with_context(*args: Any) -> tuple[JTensor, GradAuxInfo]:
    with base_layer.JaxContext.new_context(hparams=hparams):
      return loss_fn(*args)

  return loss_with_context


class BaseStochasticGradient(
  base_hyperparams.FiddleBaseParameterizable, abc.ABC
):
  """Differentiates a loss with respect to the variables."""

  # Whether gradients are clipped or have noise: then they are no new values of
  # variables with OVERWRITE_WITH_GRADIENT.
  changes_gradients: ClassVar[bool] = False
  # Whether variables may be those of a stack of repeated layers.
  takes_repeated_layers: ClassVar[bool] = True

  def process_aux_info(self, aux_info: GradAuxInfo) -> GradAuxInfo:
    """Returns the auxiliary outputs of the loss function, as reported."""
    return aux_info

  def mechanism(self, batch_size: int) -> privacy.Mechanism | None:
    """Returns the noise and the sampling of a step on this global batch.

    None if there is no guarantee of privacy: no epsilon is reported.
    """
    del batch_size
    return None

  @abc.abstractmethod
  def grad_fn(
    self,
    loss_fn: LossFn,
    mdl_vars_grad: Variables[JTensor],
    mdl_vars_nograd_and_inputs: tuple[Variables[JTensor], NestedMap],
    prng_key: pytypes.PRNGKey,
  ) -> Gradients:
    """Returns the loss, its auxiliary outputs and the gradients.

    Args:
      loss_fn: The loss.
      mdl_vars_grad: Variables to differentiate with respect to.
      mdl_vars_nograd_and_inputs: (Other variables, batch).
      prng_key: Key of the step.
    """


class StandardGradient(BaseStochasticGradient):
  """Reverse-mode differentiation of the mean loss of a batch."""

  @override
  def grad_fn(
    self,
    loss_fn: LossFn,
    mdl_vars_grad: Variables[JTensor],
    mdl_vars_nograd_and_inputs: tuple[Variables[JTensor], NestedMap],
    prng_key: pytypes.PRNGKey,
  ) -> Gradients:
    """Returns the mean loss of the batch, auxiliary outputs and gradients."""
    differentiate = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, aux), grads = differentiate(
      mdl_vars_grad, mdl_vars_nograd_and_inputs, prng_key
    )
    return (loss, self.process_aux_info(aux)), grads
