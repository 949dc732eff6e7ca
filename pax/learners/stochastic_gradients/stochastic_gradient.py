# SPDX-License-Identifier: Apache-2.0
"""The contract of gradient functions, and plain differentiation."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from praxis import base_hyperparams, pytypes

JTensor = pytypes.JTensor
Nested = pytypes.Nested


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GradAuxInfo:
  """What a loss function returns beside the loss."""

  # Anything that is a tree of arrays.
  aux_info: Any
  # Weight of the loss of this batch; of replicas, its share in all of them.
  loss_weight: JTensor | float = 1.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DPGradAuxInfo(GradAuxInfo):
  """What a private gradient function returns beside the loss."""

  # What was clipped, and how much noise was added: for summaries.
  dp_aux_info: Any = None


# Maps (variables to differentiate by, (the others, inputs), key) to (loss,
# GradAuxInfo). Of replicas the losses are such that their sum is the mean loss.
LossFn = Callable[
  [Nested[JTensor], tuple[Nested[JTensor], Nested[JTensor]], pytypes.PRNGKey],
  tuple[JTensor, GradAuxInfo],
]
# ((loss, aux_info), gradients); the gradients of replicas are to be added up.
Gradients = tuple[tuple[JTensor, GradAuxInfo], Nested[JTensor]]


class BaseStochasticGradient(
  base_hyperparams.FiddleBaseParameterizable, abc.ABC
):
  """Differentiates a loss with respect to the variables."""

  def process_aux_info(self, aux_info: GradAuxInfo) -> GradAuxInfo:
    """Returns what the loss function told, as it is reported."""
    return aux_info

  @abc.abstractmethod
  def grad_fn(
    self,
    loss_fn: LossFn,
    mdl_vars_grad: Nested[JTensor],
    mdl_vars_nograd_and_inputs: tuple[Nested[JTensor], Nested[JTensor]],
    prng_key: pytypes.PRNGKey,
  ) -> Gradients:
    """Returns ((loss, aux_info), gradients)."""


class StandardGradient(BaseStochasticGradient):
  """Plain reverse-mode differentiation of the whole batch."""

  def grad_fn(
    self,
    loss_fn: LossFn,
    mdl_vars_grad: Nested[JTensor],
    mdl_vars_nograd_and_inputs: tuple[Nested[JTensor], Nested[JTensor]],
    prng_key: pytypes.PRNGKey,
  ) -> Gradients:
    differentiate = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, aux), grads = differentiate(
      mdl_vars_grad, mdl_vars_nograd_and_inputs, prng_key
    )
    return (loss, self.process_aux_info(aux)), grads
