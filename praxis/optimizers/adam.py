# SPDX-License-Identifier: Apache-2.0
"""Adam with bias-corrected decay rates instead of bias-corrected moments."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from praxis import pax_fiddle, value_domains
from praxis.kernels import adam
from praxis.nested_map import NestedMap
from praxis.optimizers import base_optimizer, sharded_transforms, update_math
from praxis.pytypes import JTensor, Nested


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamHyperparams:
  """Hyperparameters of Adam; the fields are those of `Adam`."""

  beta1: float
  beta2: float
  epsilon: float
  epsilon_root: float = 0.0
  clip_threshold: float = 0.0
  weight_decay: float = 0.0
  maybe_inf_to_nan: bool = True


def sharded_adam(
  learning_rate_fn: sharded_transforms.LearningRateFn,
  beta1: float,
  beta2: float,
  epsilon: float,
  epsilon_root: float,
  update_capping: float,
  weight_decay: float,
  maybe_inf_to_nan: bool = True,
) -> sharded_transforms.ShardedGradientTransformation:
  """Returns Adam.

  Args:
    learning_rate_fn: the learning rate by step.
    beta1: decay of the first moment.
    beta2: decay of the second moment.
    epsilon: added outside the square root.
    epsilon_root: added inside the square root.
    update_capping: maximum RMS of an update; 0 or negative: no clipping.
    weight_decay: weight of the variables in the update.
    maybe_inf_to_nan: whether to replace infinite gradients by NaN.
  """
  hyperparams = AdamHyperparams(
    beta1=beta1,
    beta2=beta2,
    epsilon=epsilon,
    epsilon_root=epsilon_root,
    clip_threshold=update_capping,
    weight_decay=weight_decay,
    maybe_inf_to_nan=maybe_inf_to_nan,
  )
  return adam_transform(learning_rate_fn, hyperparams)


def adam_transform(
  learning_rate_fn: sharded_transforms.LearningRateFn,
  hyperparams: AdamHyperparams,
) -> sharded_transforms.ShardedGradientTransformation:
  """Returns Adam; its state has the bias-corrected moments m and v.

  References:
    Kingma and Ba, algorithm 1, https://arxiv.org/abs/1412.6980
    Shazeer and Stern, section 7.1, https://arxiv.org/abs/1804.04235 (decay)
  """

  spec = adam.Spec(
    epsilon=hyperparams.epsilon,
    epsilon_root=hyperparams.epsilon_root,
    inf_to_nan=hyperparams.maybe_inf_to_nan,
  )

  def init(params: Nested[JTensor]) -> sharded_transforms.State:
    m, v = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
    return NestedMap(count=jnp.zeros([], jnp.int32), m=m, v=v)

  def update(
    grads: Nested[JTensor],
    state: sharded_transforms.State,
    params: Nested[JTensor] | None = None,
  ) -> tuple[Nested[JTensor], sharded_transforms.State]:
    b1 = update_math.bias_corrected_decay(hyperparams.beta1, state.count)
    b2 = update_math.bias_corrected_decay(hyperparams.beta2, state.count)

    def update_one(g: JTensor, m: JTensor, v: JTensor) -> adam.Update:
      run = adam.update if adam.is_fast(g, m, v) else adam.reference
      return run(g, m, v, b1, b2, spec)

    results = jax.tree.map(update_one, grads, state.m, state.v)
    steps, m, v = (
      jax.tree.map(lambda _, result, i=i: result[i], grads, results)
      for i in range(3)
    )
    lr = learning_rate_fn(state.count)
    updates = _clip_decay_scale(steps, params, hyperparams, lr)
    return updates, NestedMap(count=state.count + 1, m=m, v=v)

  return sharded_transforms.sharded(init, update)


class Adam(base_optimizer.BaseOptimizer):
  """Adam with update clipping: m / (sqrt(v + epsilon_root) + epsilon)."""

  beta1: float = value_domains.field(0.9, ge=0.0, lt=1.0)
  beta2: float = value_domains.field(0.999, ge=0.0, lt=1.0)
  # Added outside and inside the square root.
  epsilon: float = 1e-6
  epsilon_root: float = 0.0
  # Maximum RMS of the update of a variable, before the learning rate; 0 or
  # negative: no clipping.
  clip_threshold: float = 1.0
  # Adds weight * w to the update of every variable, before the learning rate.
  # Prefer decoupled_weight_decay, which can exclude variables.
  weight_decay: float = 0.0
  # False: uses optax.adam, without clip_threshold, weight_decay and
  # maybe_inf_to_nan.
  sharded_adam: bool = True
  # Replaces infinite gradients by NaN, for which the learner skips the step.
  maybe_inf_to_nan: bool = True

  @classmethod
  def HParamsA(cls, **kwargs: object) -> pax_fiddle.Config[Adam]:
    """Returns a Config with beta2 = 0.997 and epsilon = 1e-9."""
    return cls.config(beta1=0.9, beta2=0.997, epsilon=1e-9).set(**kwargs)

  @classmethod
  def HParamsB(cls, **kwargs: object) -> pax_fiddle.Config[Adam]:
    """Returns a Config with beta2 = 0.98 and epsilon = 1e-9.

    References:
      Vaswani et al., section 5.3, https://arxiv.org/abs/1706.03762
    """
    return cls.config(beta1=0.9, beta2=0.98, epsilon=1e-9).set(**kwargs)

  def _get_raw_grad_transformation(
    self,
    learning_rate_fn: sharded_transforms.LearningRateFn,
  ) -> sharded_transforms.GradientTransformation:
    hyperparams = AdamHyperparams(
      beta1=self.beta1,
      beta2=self.beta2,
      epsilon=self.epsilon,
      epsilon_root=self.epsilon_root,
      clip_threshold=self.clip_threshold,
      weight_decay=self.weight_decay,
      maybe_inf_to_nan=self.maybe_inf_to_nan,
    )
    create = adam_transform if self.sharded_adam else _optax_adam
    return create(learning_rate_fn, hyperparams)


def _optax_adam(
  learning_rate_fn: sharded_transforms.LearningRateFn,
  hyperparams: AdamHyperparams,
) -> sharded_transforms.ShardedGradientTransformation:
  """Returns optax.adam, which neither clips nor decays."""
  import optax  # Slow to import; only this variant needs it.

  moments_tx = optax.scale_by_adam(
    b1=hyperparams.beta1,
    b2=hyperparams.beta2,
    eps=hyperparams.epsilon,
    eps_root=hyperparams.epsilon_root,
  )

  def scale(
    updates: Nested[JTensor], count: JTensor, params: Nested[JTensor] | None
  ) -> Nested[JTensor]:
    del params
    lr = learning_rate_fn(count)
    return jax.tree.map(lambda u: -lr.astype(u.dtype) * u, updates)

  return sharded_transforms.sharded_chain(
    moments_tx, sharded_transforms.counting(scale)
  )


def _clip_decay_scale(
  updates: Nested[JTensor],
  params: Nested[JTensor] | None,
  hyperparams: AdamHyperparams,
  lr: JTensor,
) -> Nested[JTensor]:
  """Returns -lr * (clipped updates + weight_decay * params)."""
  if hyperparams.weight_decay and params is None:
    raise ValueError('weight_decay needs the variables; pass params to update')

  def finish(u: JTensor, w: JTensor) -> JTensor:
    u = update_math.clip_rms(u, hyperparams.clip_threshold)
    if hyperparams.weight_decay:
      u = u + (hyperparams.weight_decay * w).astype(u.dtype)
    return -lr.astype(u.dtype) * u

  return jax.tree.map(finish, updates, updates if params is None else params)
