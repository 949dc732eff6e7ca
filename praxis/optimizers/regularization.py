# SPDX-License-Identifier: Apache-2.0
"""Regularizers, weight decay and moving averages of any optimizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer, py_utils
from praxis.nested_map import NestedMap
from praxis.optimizers import masked_trees, sharded_transforms
from praxis.pytypes import JTensor, Nested

_Hparams = Nested[base_layer.WeightHParams]


def lp_mask(var_weight_hparams: _Hparams) -> Nested[bool]:
  """Returns a tree with True for variables that are regularized."""
  return jax.tree.map(
    lambda hp: not base_layer.var_skip_lp_regularization(hp),
    var_weight_hparams,
  )


def weight_of(weights: float | Mapping[str, float] | None, path: str) -> float:
  """Returns the weight of a variable, 0 for none.

  Args:
    weights: that of all variables, or by regular expressions that match at the
      start of a path; the last one that matches counts.
    path: that of the variable.
  """
  if not isinstance(weights, Mapping):
    return weights or 0.0
  matches = [w for pattern, w in weights.items() if re.match(pattern, path)]
  return matches[-1] if matches else 0.0


def apply_lp_regularizer(
  var_lp_mask: Nested[bool] | None,
  regularizer_weight: float | None = 0.0,
  p: float | None = 2.0,
  skip_lp_1d_vectors: bool | None = False,
  use_optax_gradient_transformations: bool = False,
) -> sharded_transforms.GradientTransformation:
  """Returns the transformation that adds the gradient of weight |w|_p^p / p.

  That is weight * sign(w) for p = 1 and weight * w for p = 2.

  Args:
    var_lp_mask: True for regularized variables; None: all.
    regularizer_weight: the weight; None or 0: no change of the updates.
    p: 1 or 2.
    skip_lp_1d_vectors: whether to exclude variables with at most one dimension.
    use_optax_gradient_transformations: whether to return an Optax
      transformation.

  Raises:
    ValueError: p is neither 1 nor 2.
  """
  gradients: dict[float | None, Callable[[JTensor], JTensor]] = {
    1.0: jnp.sign,
    2.0: lambda w: w,
  }
  gradient = gradients.get(p)
  if gradient is None:
    raise ValueError(f'p must be 1 or 2, got {p}')
  if not regularizer_weight:
    return _maybe_optax(_identity(), use_optax_gradient_transformations)

  def term(path: str, w: JTensor) -> JTensor | float:
    del path
    if skip_lp_1d_vectors and w.ndim <= 1:
      return 0.0
    return regularizer_weight * gradient(w)

  def update(
    updates: Nested[JTensor], count: JTensor, params: Nested[JTensor] | None
  ) -> Nested[JTensor]:
    del count
    params = _required(params, f'l{p:.0f}_regularizer_weight')
    return _add_where(var_lp_mask, updates, params, term)

  tx = sharded_transforms.counting(update)
  return _maybe_optax(tx, use_optax_gradient_transformations)


def apply_decoupled_weight_decay(
  learning_rate_fn: sharded_transforms.LearningRateFn,
  var_wd_mask: Nested[bool] | None,
  regularizer_weight: float | Mapping[str, float] | None = 0.0,
  use_optax_gradient_transformations: bool = False,
) -> sharded_transforms.GradientTransformation:
  """Returns the transformation that subtracts lr * weight * w.

  Args:
    learning_rate_fn: the learning rate by step.
    var_wd_mask: True for variables that decay; None: all.
    regularizer_weight: the weight, or weights by path as in `weight_of`; None
      or 0: no change of the updates.
    use_optax_gradient_transformations: whether to return an Optax
      transformation.

  References:
    Loshchilov and Hutter, https://arxiv.org/abs/1711.05101
  """

  def update(
    updates: Nested[JTensor], count: JTensor, params: Nested[JTensor] | None
  ) -> Nested[JTensor]:
    lr = learning_rate_fn(count)

    def term(path: str, w: JTensor) -> JTensor | float:
      weight = weight_of(regularizer_weight, path)
      return -lr * weight * w if weight else 0.0

    params = _required(params, 'decoupled_weight_decay')
    return _add_where(var_wd_mask, updates, params, term)

  tx = (
    sharded_transforms.counting(update) if regularizer_weight else _identity()
  )
  return _maybe_optax(tx, use_optax_gradient_transformations)


def apply_ema_weights(
  decay: float, use_optax_gradient_transformations: bool = False
) -> sharded_transforms.GradientTransformation:
  """Returns the transformation that keeps a moving average of the variables.

  With n previous steps, d = min(decay, (1 + n) / (10 + n)) and w the variable
  before the step: ema <- d ema + (1 - d) w. Integers are copied. The variable
  after the step is unknown here: updates of non-trainable variables are not
  those of the optimizer.

  Raises:
    ValueError: `decay` is not in (0, 1).
  """
  if not 0.0 < decay < 1.0:
    raise ValueError(f'ema_decay must be in (0, 1), got {decay}')

  def init(params: Nested[JTensor]) -> sharded_transforms.State:
    # Copies: the average must not share memory with the donated variables.
    ema = jax.tree.map(lambda w: jnp.array(w, copy=True), params)
    return NestedMap(count=jnp.zeros([], jnp.int32), ema=ema)

  def update(
    updates: Nested[JTensor],
    state: sharded_transforms.State,
    params: Nested[JTensor] | None = None,
  ) -> tuple[Nested[JTensor], sharded_transforms.State]:
    d = ema_decay_at(decay, state.count)

    def average(ema: JTensor, w: JTensor) -> JTensor:
      if not jnp.issubdtype(w.dtype, jnp.inexact):
        return w
      return (ema - (1.0 - d) * (ema - w)).astype(ema.dtype)

    params = _required(params, 'ema_decay')
    ema = jax.tree.map(average, state.ema, params)
    return updates, NestedMap(count=state.count + 1, ema=ema)

  tx = sharded_transforms.sharded(init, update)
  return _maybe_optax(tx, use_optax_gradient_transformations)


def ema_decay_at(decay: float, count: Int[Array, '']) -> Float[Array, '']:
  """Returns the decay after `count` steps: min(decay, (1 + n) / (10 + n))."""
  n = count.astype(jnp.float32)
  return jnp.minimum(decay, (1.0 + n) / (10.0 + n))


def apply_ewc_regularization(
  learning_rate_fn: sharded_transforms.LearningRateFn,
  ewc_regularizer_weight: float = 0.0,
  ewc_weight_per_var: Nested[float] | None = None,
  use_optax_gradient_transformations: bool = False,
) -> sharded_transforms.GradientTransformation:
  """Returns elastic weight consolidation.

  It subtracts lr * weight / 2 * weight_per_var * (w - w_start), where w_start
  is the variable at the first step.

  Args:
    learning_rate_fn: the learning rate by step.
    ewc_regularizer_weight: the weight.
    ewc_weight_per_var: a factor per variable, in a tree of all variables; None:
      1. A factor may be an array that broadcasts to the variable, or to one
      layer of a stacked variable.
    use_optax_gradient_transformations: whether to return an Optax
      transformation.

  References:
    Kirkpatrick et al., equation 3, https://arxiv.org/abs/1612.00796
  """

  def init(params: Nested[JTensor]) -> sharded_transforms.State:
    start = jax.tree.map(lambda w: jnp.array(w, copy=True), params)
    return NestedMap(count=jnp.zeros([], jnp.int32), pretrain_vars=start)

  def update(
    updates: Nested[JTensor],
    state: sharded_transforms.State,
    params: Nested[JTensor] | None = None,
  ) -> tuple[Nested[JTensor], sharded_transforms.State]:
    params = _required(params, 'ewc_regularizer_weight')
    # At the first step the variables may come from another checkpoint.
    start = jax.tree.map(
      lambda old, w: jnp.where(state.count == 0, w, old),
      state.pretrain_vars,
      params,
    )
    scale = learning_rate_fn(state.count) * ewc_regularizer_weight / 2
    per_var = _factors(ewc_weight_per_var, params)
    updates = jax.tree.map(
      lambda u, w, s, k: u - (scale * k * (w - s)).astype(u.dtype),
      updates,
      params,
      start,
      per_var,
    )
    return updates, NestedMap(count=state.count + 1, pretrain_vars=start)

  tx = sharded_transforms.sharded(init, update)
  return _maybe_optax(tx, use_optax_gradient_transformations)


def _factors(
  ewc_weight_per_var: Nested[float] | None, params: Nested[JTensor]
) -> Nested[float]:
  """Returns the factors of the variables that are not masked.

  Raises:
    ValueError: a factor does not broadcast to its variable.
  """
  if not ewc_weight_per_var:
    return jax.tree.map(lambda _: 1.0, params)

  def factor(w: JTensor, k: float) -> float | masked_trees.BpropMaskedNode:
    if masked_trees.is_masked(w):
      return masked_trees.BpropMaskedNode()
    if jnp.broadcast_shapes(jnp.shape(k), w.shape) != w.shape:
      raise ValueError(
        f'ewc_weight_per_var has a factor of shape {jnp.shape(k)} for a'
        f' variable (or layer of a stack) of shape {w.shape}; give a scalar or'
        ' an array that broadcasts to that shape'
      )
    return k

  return jax.tree.map(
    factor, params, ewc_weight_per_var, is_leaf=masked_trees.is_masked
  )


def _identity() -> sharded_transforms.ShardedGradientTransformation:
  return sharded_transforms.counting(lambda updates, count, params: updates)


def _maybe_optax(
  tx: sharded_transforms.ShardedGradientTransformation, use_optax: bool
) -> sharded_transforms.GradientTransformation:
  if not use_optax:
    return tx
  import optax  # Slow to import; only this case needs it.

  return optax.GradientTransformationExtraArgs(tx.init, tx.update)


def _add_where(
  mask: Nested[bool] | None,
  updates: Nested[JTensor],
  params: Nested[JTensor],
  term: Callable[[str, JTensor], JTensor | float],
) -> Nested[JTensor]:
  """Adds a term to the updates that are not masked and are in `mask`."""

  def add(path: str, u: JTensor, w: JTensor, keep: bool = True) -> JTensor:
    if masked_trees.is_masked(u) or keep is not True:
      return u
    return u + jnp.asarray(term(path, w), u.dtype)

  masks = [] if mask is None else [mask]
  return py_utils.map_with_path(
    add, updates, params, *masks, is_leaf=masked_trees.is_masked
  )


def _required(params: Nested[JTensor] | None, field: str) -> Nested[JTensor]:
  if params is None:
    raise ValueError(
      f'{field} needs the variables; call update(updates, state, params)'
    )
  return params
