# SPDX-License-Identifier: Apache-2.0
"""DP-SGD that clips the gradient of each replica, as fast as no clipping."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pax.learners.stochastic_gradients import (
  gaussian_mechanism,
  stochastic_gradient,
)
from praxis import base_layer, pytypes

JTensor = stochastic_gradient.JTensor
Nested = stochastic_gradient.Nested


class PercoreClippedDpSgdGradient(stochastic_gradient.BaseStochasticGradient):
  """The gradient of each replica, clipped, with noise.

  It is for replicas only, that is with an ici_mesh_shape of None.
  """

  # Largest norm of the gradient of a replica's mean loss.
  l2_norm_clip: float | None = 0.0
  # Standard deviation of the noise on the sum of gradients, in these norms.
  noise_multiplier: float = 0.0
  # Scales the norm by the replica's share of the loss; not with noise.
  use_loss_weight_scaling: bool = False
  # Divides the result by the largest norm.
  normalize_gradients: bool = False
  # 'min' takes the smallest norm of all replicas instead of l2_norm_clip.
  adaptive_clipping_method: str | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.adaptive_clipping_method not in (None, 'min'):
      raise ValueError(
        'PercoreClippedDpSgdGradient.adaptive_clipping_method must be None or'
        f" 'min', got {self.adaptive_clipping_method!r}"
      )
    gaussian_mechanism.check(
      self,
      bound=1.0 if self.adaptive_clipping_method else self.l2_norm_clip,
      noise_multiplier=self.noise_multiplier,
      use_loss_weight_scaling=self.use_loss_weight_scaling,
    )

  def grad_fn(
    self,
    loss_fn: stochastic_gradient.LossFn,
    mdl_vars_grad: Nested[JTensor],
    mdl_vars_nograd_and_inputs: tuple[Nested[JTensor], Nested[JTensor]],
    prng_key: pytypes.PRNGKey,
  ) -> stochastic_gradient.Gradients:
    if not base_layer.is_running_under_pmap():
      raise ValueError(
        'PercoreClippedDpSgdGradient clips the gradients of replicas, and there'
        ' are none; set ici_mesh_shape to None, or use DpSgdStochasticGradient'
      )
    differentiate = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, aux), grads = differentiate(
      mdl_vars_grad, mdl_vars_nograd_and_inputs, prng_key
    )
    aux = self.process_aux_info(aux)
    norm = gaussian_mechanism.norms([g[None] for g in jax.tree.leaves(grads)])[
      0
    ]
    share = 1.0 / gaussian_mechanism.replicas()
    if self.use_loss_weight_scaling:
      share = aux.loss_weight
    bound = self._bound(norm, share)
    divisor = jnp.maximum(norm / (share * bound), 1.0)
    unit = bound
    if self.normalize_gradients:
      divisor, unit = divisor * bound, 1.0
    grads = jax.tree.map(lambda g: (g / divisor).astype(g.dtype), grads)
    stddev = jnp.float32(
      self.noise_multiplier * unit / gaussian_mechanism.replicas()
    )
    if self.noise_multiplier:
      grads = gaussian_mechanism.add_noise(grads, stddev, prng_key)
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
    if self.adaptive_clipping_method is None:
      return self.l2_norm_clip
    axis = base_layer.PMAP_PARALLEL_AXIS_NAME
    return jax.lax.pmin(norm, axis) / share
