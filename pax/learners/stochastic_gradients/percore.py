# SPDX-License-Identifier: Apache-2.0
"""DP-SGD that clips the mean gradient of each replica."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from pax.learners import clipping
from pax.learners.stochastic_gradients import (
  gaussian_mechanism,
  stochastic_gradient,
)
from pax.train_states import Variables
from praxis import base_layer, pytypes, value_domains

JTensor = stochastic_gradient.JTensor
NestedMap = stochastic_gradient.NestedMap


class PercoreClippedDpSgdGradient(stochastic_gradient.BaseStochasticGradient):
  """Clips the mean gradient of each replica and adds noise.

  It costs no more than plain differentiation. It requires pmap semantics, that
  is an `ici_mesh_shape` of None.
  """

  changes_gradients: ClassVar[bool] = True

  # Maximum norm C of the gradient of a replica's mean loss.
  l2_norm_clip: float | None = 0.0
  # Standard deviation of the noise on the sum of gradients, in units of C.
  noise_multiplier: float = value_domains.field(0.0, ge=0.0)
  # Whether to scale the bound by the replica's share of the loss; excludes
  # noise.
  use_loss_weight_scaling: bool = False
  # Whether to divide the gradients by C.
  normalize_gradients: bool = False
  # 'min' takes the minimum norm over replicas as C instead of l2_norm_clip.
  adaptive_clipping_method: str | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.adaptive_clipping_method not in (None, 'min'):
      raise ValueError(
        'PercoreClippedDpSgdGradient.adaptive_clipping_method must be None or'
        f" 'min', got {self.adaptive_clipping_method!r}"
      )
    gaussian_mechanism.check_settings(
      self,
      bound=1.0 if self.adaptive_clipping_method else self.l2_norm_clip,
      noise_multiplier=self.noise_multiplier,
      use_loss_weight_scaling=self.use_loss_weight_scaling,
    )

  @override
  def grad_fn(
    self,
    loss_fn: stochastic_gradient.LossFn,
    mdl_vars_grad: Variables[JTensor],
    mdl_vars_nograd_and_inputs: tuple[Variables[JTensor], NestedMap],
    prng_key: pytypes.PRNGKey,
  ) -> stochastic_gradient.Gradients:
    """Returns this replica's loss, auxiliary outputs and private gradients.

    Raises:
      ValueError: there are no replicas.
    """
    if not base_layer.is_running_under_pmap():
      raise ValueError(
        'PercoreClippedDpSgdGradient clips the gradients of replicas, but there'
        ' are none; set ici_mesh_shape to None, or use DpSgdStochasticGradient'
      )
    # A replica's gradient must not depend on the examples of others.
    loss_fn = stochastic_gradient.with_context(loss_fn, sync_replicas=False)
    differentiate = jax.value_and_grad(loss_fn, has_aux=True)
    loss_key, noise_key = jax.random.split(prng_key)
    (loss, aux), grads = differentiate(
      mdl_vars_grad, mdl_vars_nograd_and_inputs, loss_key
    )
    aux = self.process_aux_info(aux)
    stacked = [g[None] for g in jax.tree.leaves(grads)]
    norm = gaussian_mechanism.norms(stacked)[0]
    num_replicas = gaussian_mechanism.num_replicas()
    share: JTensor | float = 1.0 / num_replicas
    if self.use_loss_weight_scaling:
      share = aux.loss_weight
    bound = self._bound(norm, share)
    factor = clipping.clipping_scale(norm, share * bound)
    sensitivity = bound
    if self.normalize_gradients:
      factor, sensitivity = factor / bound, 1.0
    grads = jax.tree.map(lambda g: (g * factor).astype(g.dtype), grads)
    stddev = jnp.float32(self.noise_multiplier * sensitivity / num_replicas)
    if self.noise_multiplier:
      grads = gaussian_mechanism.add_noise(grads, stddev, noise_key)
    dp_aux_info = {
      'frac_clipped': (norm > share * bound).astype(jnp.float32),
      'per_core_grad_norm': norm,
      'noise_std': stddev,
    }
    aux = stochastic_gradient.DPGradAuxInfo(
      aux.aux_info, aux.loss_weight, dp_aux_info
    )
    return (loss, aux), grads

  def _bound(
    self, norm: Float[Array, ''], share: JTensor | float
  ) -> Float[Array, ''] | float:
    """Returns C, in the scale of a replica's own mean loss."""
    # Without a fixed bound there is a method.
    if self.adaptive_clipping_method or self.l2_norm_clip is None:
      axis = base_layer.PMAP_PARALLEL_AXIS_NAME
      return jax.lax.pmin(norm, axis) / share
    return self.l2_norm_clip
