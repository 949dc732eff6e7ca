# SPDX-License-Identifier: Apache-2.0
"""Adam, with the bias correction folded into its decay rates."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from praxis import base_layer, pax_fiddle
from praxis.nested_map import NestedMap
from praxis.optimizers import base_optimizer, sharded_transforms, update_math
from praxis.pytypes import JTensor, Nested


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamRule:
  """The numbers of Adam's update; see `Adam` for what they mean."""

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
  """Returns Adam; `update_capping` is its `clip_threshold`."""
  rule = AdamRule(
    beta1=beta1,
    beta2=beta2,
    epsilon=epsilon,
    epsilon_root=epsilon_root,
    clip_threshold=update_capping,
    weight_decay=weight_decay,
    maybe_inf_to_nan=maybe_inf_to_nan,
  )
  return adam_by_rule(learning_rate_fn, rule)


def adam_by_rule(
  learning_rate_fn: sharded_transforms.LearningRateFn, rule: AdamRule
) -> sharded_transforms.ShardedGradientTransformation:
  """Returns Adam; its state holds the unbiased moments m and v.

  References:
    Kingma and Ba, https://arxiv.org/abs/1412.6980
  """

  def init(params: Nested[JTensor]) -> sharded_transforms.State:
    m, v = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
    return NestedMap(count=jnp.zeros([], jnp.int32), m=m, v=v)

  def update(
    grads: Nested[JTensor],
    state: sharded_transforms.State,
    params: Nested[JTensor] | None = None,
  ) -> tuple[Nested[JTensor], sharded_transforms.State]:
    if rule.maybe_inf_to_nan:
      grads = jax.tree.map(update_math.inf_to_nan, grads)
    b1 = update_math.bias_corrected_decay(rule.beta1, state.count)
    b2 = update_math.bias_corrected_decay(rule.beta2, state.count)
    m = jax.tree.map(lambda m, g: _decay(m, g, b1), state.m, grads)
    v = jax.tree.map(lambda v, g: _decay(v, g * g, b2), state.v, grads)

    steps = jax.tree.map(
      lambda m, v: m / (jnp.sqrt(v + rule.epsilon_root) + rule.epsilon), m, v
    )
    lr = learning_rate_fn(state.count)
    updates = _clip_decay_scale(steps, params, rule, lr)
    return updates, NestedMap(count=state.count + 1, m=m, v=v)

  return sharded_transforms.sharded(init, update)


class Adam(base_optimizer.BaseOptimizer):
  """Adam with update clipping; m / (sqrt(v + epsilon_root) + epsilon)."""

  beta1: float = 0.9
  beta2: float = 0.999
  # Added outside and inside the root.
  epsilon: float = 1e-6
  epsilon_root: float = 0.0
  # Largest RMS of the update of one variable, before the learning rate; 0 or
  # negative: not clipped.
  clip_threshold: float = 1.0
  # Adds weight * w to the update of every variable, before the learning rate.
  # Prefer decoupled_weight_decay, which can leave variables out.
  weight_decay: float = 0.0
  # False: the moments are stored biased, in the state of optax.scale_by_adam.
  sharded_adam: bool = True
  # Turns infinite gradients into NaN, so that the learner skips the step.
  maybe_inf_to_nan: bool = True

  @classmethod
  def HParamsA(cls, **kwargs: object) -> pax_fiddle.Config[Adam]:
    """Returns the config of the Transformer paper: beta2 .997, epsilon 1e-9."""
    return cls.config(beta1=0.9, beta2=0.997, epsilon=1e-9).set(**kwargs)

  @classmethod
  def HParamsB(cls, **kwargs: object) -> pax_fiddle.Config[Adam]:
    """Returns the config with beta2 .98 and epsilon 1e-9."""
    return cls.config(beta1=0.9, beta2=0.98, epsilon=1e-9).set(**kwargs)

  def _get_raw_grad_transformation(
    self,
    learning_rate_fn: sharded_transforms.LearningRateFn,
    var_weight_hparams: Nested[base_layer.WeightHParams] | None,
  ) -> sharded_transforms.GradientTransformation:
    rule = AdamRule(
      beta1=self.beta1,
      beta2=self.beta2,
      epsilon=self.epsilon,
      epsilon_root=self.epsilon_root,
      clip_threshold=self.clip_threshold,
      weight_decay=self.weight_decay,
      maybe_inf_to_nan=self.maybe_inf_to_nan,
    )
    make = adam_by_rule if self.sharded_adam else _optax_adam
    return make(learning_rate_fn, rule)


def _optax_adam(
  learning_rate_fn: sharded_transforms.LearningRateFn, rule: AdamRule
) -> sharded_transforms.ShardedGradientTransformation:
  import optax  # Needed by this variant alone.

  moments_tx = optax.scale_by_adam(
    b1=rule.beta1, b2=rule.beta2, eps=rule.epsilon, eps_root=rule.epsilon_root
  )

  def finish(
    updates: Nested[JTensor], count: JTensor, params: Nested[JTensor] | None
  ) -> Nested[JTensor]:
    return _clip_decay_scale(updates, params, rule, learning_rate_fn(count))

  return sharded_transforms.sharded_chain(
    moments_tx, sharded_transforms.counting(finish)
  )


def _clip_decay_scale(
  updates: Nested[JTensor],
  params: Nested[JTensor] | None,
  rule: AdamRule,
  lr: JTensor,
) -> Nested[JTensor]:
  """Returns -lr * (clipped updates + weight_decay * params)."""
  if rule.weight_decay and params is None:
    raise ValueError('weight_decay needs the variables; pass params to update')

  def finish(u: JTensor, w: JTensor) -> JTensor:
    u = update_math.clip_rms(u, rule.clip_threshold)
    if rule.weight_decay:
      u = u + (rule.weight_decay * w).astype(u.dtype)
    return -lr.astype(u.dtype) * u

  return jax.tree.map(finish, updates, updates if params is None else params)


def _decay(average: JTensor, new: JTensor, decay: JTensor) -> JTensor:
  return (decay * average + (1.0 - decay) * new).astype(average.dtype)
