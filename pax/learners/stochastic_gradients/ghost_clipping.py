# SPDX-License-Identifier: Apache-2.0
"""DP-SGD with ghost clipping: norms without per-example gradients."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from pax.ghostnorm import base as ghostnorm
from pax.learners import clipping
from pax.learners.stochastic_gradients import (
  dp_sgd,
  gaussian_mechanism,
  stochastic_gradient,
)
from pax.train_states import Variables
from praxis import base_layer, pytypes
from praxis.pytypes import Nested

JTensor = stochastic_gradient.JTensor
NestedMap = stochastic_gradient.NestedMap
PARAMS = base_layer.PARAMS


class GhostClippingDpSgdStochasticGradient(dp_sgd.DpSgdStochasticGradient):
  """DP-SGD in two backward passes over the whole batch.

  The first pass computes the norm of each example's gradient, the second the
  mean of gradients weighted so that they are clipped. Every layer with weights
  must be a layer of `pax.ghostnorm`, none of them repeated, and the loss a mean
  over examples of equal weight.

  References:
    Li et al., https://arxiv.org/abs/2110.05679
  """

  takes_repeated_layers: ClassVar[bool] = False

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.inner_batch_size is not None:
      raise ValueError(
        'GhostClippingDpSgdStochasticGradient.inner_batch_size must be None,'
        f' got {self.inner_batch_size}: there are no per-example gradients to'
        ' chunk'
      )

  def process_aux_info(
    self, aux_info: stochastic_gradient.GradAuxInfo
  ) -> stochastic_gradient.GradAuxInfo:
    """Returns `aux_info`, which describes the whole batch already."""
    return aux_info

  @override
  def grad_fn(
    self,
    loss_fn: stochastic_gradient.LossFn,
    mdl_vars_grad: Variables[JTensor],
    mdl_vars_nograd_and_inputs: tuple[Variables[JTensor], NestedMap],
    prng_key: pytypes.PRNGKey,
  ) -> stochastic_gradient.Gradients:
    """Returns the mean loss, auxiliary outputs and private gradients."""
    batch_size = jax.tree.leaves(mdl_vars_nograd_and_inputs[1])[0].shape[0]
    loss_key, noise_key = jax.random.split(prng_key)

    def weighted_grads(
      scales: Float[Array, ' N'],
    ) -> tuple[
      tuple[JTensor, stochastic_gradient.GradAuxInfo],
      Variables[ghostnorm.ParamWithAux],
    ]:
      """Returns gradients, with the squared norm of each example's share."""
      params = jax.tree.map(
        lambda w: ghostnorm.ParamWithAux(w, scales), mdl_vars_grad[PARAMS]
      )
      return jax.value_and_grad(loss_fn, has_aux=True)(
        _with_params(mdl_vars_grad, params),
        mdl_vars_nograd_and_inputs,
        loss_key,
      )

    _, weighted = weighted_grads(jnp.ones(batch_size))
    # The losses of replicas sum to the mean loss, so each is 1 / n of its own.
    squared_norms = _squared_norms(weighted[PARAMS])
    norms = gaussian_mechanism.num_replicas() * jnp.sqrt(sum(squared_norms))
    scales = clipping.clipping_scale(norms, self.l2_norm_clip)
    (loss, aux), weighted = weighted_grads(scales)
    clipped = _with_params(weighted, ghostnorm.get_param(weighted[PARAMS]))
    grads, noise_std = self._normalize_and_add_noise(
      clipped, batch_size, noise_key
    )
    dp_aux_info = {
      'frac_clipped': jnp.mean(scales < 1.0),
      'noise_std': noise_std,
    }
    aux = stochastic_gradient.DPGradAuxInfo(
      aux.aux_info, aux.loss_weight, dp_aux_info
    )
    return (loss, self.process_aux_info(aux)), grads


def _squared_norms(
  grads: Nested[ghostnorm.ParamWithAux],
) -> list[Float[Array, ' N']]:
  params = jax.tree.leaves(
    grads, is_leaf=lambda x: isinstance(x, ghostnorm.ParamWithAux)
  )
  return [param.aux for param in params]


def _with_params(
  variables: Variables[Any], params: Nested[Any]
) -> Variables[Any]:
  """Returns a copy of the variables with the collection PARAMS replaced."""
  replaced = variables.copy()
  replaced[PARAMS] = params
  return replaced
