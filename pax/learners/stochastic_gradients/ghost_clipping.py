# SPDX-License-Identifier: Apache-2.0
"""DP-SGD with ghost clipping: norms without per-example gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from pax.ghostnorm import base as ghostnorm
from pax.learners.stochastic_gradients import (
  dp_sgd,
  gaussian_mechanism,
  stochastic_gradient,
)
from praxis import base_layer, pytypes
from praxis.pytypes import Nested

JTensor = stochastic_gradient.JTensor
PARAMS = base_layer.PARAMS


class GhostClippingDpSgdStochasticGradient(dp_sgd.DpSgdStochasticGradient):
  """DP-SGD in two backward passes over the whole batch.

  The first pass computes the norm of each example's gradient, the second the
  mean of gradients weighted so that they are clipped. Every layer with weights
  must be a layer of `pax.ghostnorm`, and the loss a mean over examples of equal
  weight.

  References:
    Li et al., https://arxiv.org/abs/2110.05679
  """

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
    mdl_vars_grad: Nested[JTensor],
    mdl_vars_nograd_and_inputs: tuple[Nested[JTensor], Nested[JTensor]],
    prng_key: pytypes.PRNGKey,
  ) -> stochastic_gradient.Gradients:
    """Returns the mean loss, auxiliary outputs and private gradients."""
    batch_size = jax.tree.leaves(mdl_vars_nograd_and_inputs[1])[0].shape[0]
    loss_key, noise_key = jax.random.split(prng_key)

    def weighted_grads(
      scales: Float[Array, ' N'],
    ) -> stochastic_gradient.Gradients:
      """Returns gradients, with the squared norm of each example's share."""
      params = jax.tree.map(
        lambda w: ghostnorm.ParamWithAux(w, scales), mdl_vars_grad[PARAMS]
      )
      return jax.value_and_grad(loss_fn, has_aux=True)(
        _with_params(mdl_vars_grad, params),
        mdl_vars_nograd_and_inputs,
        loss_key,
      )

    _, grads = weighted_grads(jnp.ones(batch_size))
    # The losses of replicas sum to the mean loss, so each is 1 / n of its own.
    norms = gaussian_mechanism.num_replicas() * jnp.sqrt(
      sum(g.aux for g in _params_with_aux(grads[PARAMS]))
    )
    scales = jnp.minimum(1.0, self.l2_norm_clip / jnp.maximum(norms, 1e-30))
    (loss, aux), grads = weighted_grads(scales)
    grads = _with_params(grads, ghostnorm.get_param(grads[PARAMS]))
    grads, noise_std = self._normalize_and_add_noise(
      grads, batch_size, noise_key
    )
    dp_aux_info = {
      'frac_clipped': jnp.mean(scales < 1.0),
      'noise_std': noise_std,
    }
    aux = stochastic_gradient.DPGradAuxInfo(
      aux.aux_info, aux.loss_weight, dp_aux_info
    )
    return (loss, self.process_aux_info(aux)), grads


def _params_with_aux(grads: Nested[JTensor]) -> list[ghostnorm.ParamWithAux]:
  return jax.tree.leaves(
    grads, is_leaf=lambda x: isinstance(x, ghostnorm.ParamWithAux)
  )


def _with_params(
  variables: Nested[JTensor], params: Nested[JTensor]
) -> Nested[JTensor]:
  """Returns a copy of the variables with the collection PARAMS replaced."""
  replaced = variables.copy()
  replaced[PARAMS] = params
  return replaced
