# SPDX-License-Identifier: Apache-2.0
"""How the gradient of a loss is computed from a batch."""

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
  # Weight of the loss of this batch among others.
  loss_weight: JTensor | float = 1.0


# Maps (variables, inputs, key) to (loss, GradAuxInfo).
LossFn = Callable[
  [Nested[JTensor], Nested[JTensor], pytypes.PRNGKey],
  tuple[JTensor, GradAuxInfo],
]


class BaseStochasticGradient(
  base_hyperparams.FiddleBaseParameterizable, abc.ABC
):
  """Differentiates a loss with respect to the variables."""

  @abc.abstractmethod
  def grad_fn(
    self,
    loss_fn: LossFn,
    mdl_vars: Nested[JTensor],
    inputs: Nested[JTensor],
    prng_key: pytypes.PRNGKey,
  ) -> tuple[tuple[JTensor, Any], Nested[JTensor]]:
    """Returns ((loss, aux_info), gradients)."""


class StandardGradient(BaseStochasticGradient):
  """Plain reverse-mode differentiation of the whole batch."""

  def grad_fn(
    self,
    loss_fn: LossFn,
    mdl_vars: Nested[JTensor],
    inputs: Nested[JTensor],
    prng_key: pytypes.PRNGKey,
  ) -> tuple[tuple[JTensor, Any], Nested[JTensor]]:
    differentiate = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, aux), grads = differentiate(mdl_vars, inputs, prng_key)
    return (loss, aux.aux_info), grads
