# SPDX-License-Identifier: Apache-2.0
"""BaseOptimizer: an update rule in a chain of regularizers and averages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from praxis import (
  base_hyperparams,
  base_layer,
  pax_fiddle,
  schedules,
  value_domains,
)
from praxis.optimizers import regularization, sharded_transforms
from praxis.pytypes import Nested

_FINITE = value_domains.OrNone(value_domains.Interval())
_FINITE_BY_PATH = value_domains.OrNone(
  value_domains.OrByPath(value_domains.Interval())
)
_NOT_NEGATIVE = value_domains.OrNone(value_domains.Interval(ge=0.0))


@runtime_checkable
class Optimizer(Protocol):
  """The interface between learners and optimizers."""

  @property
  def clip_gradient_norm_to_value(self) -> float:
    """Maximum global norm of the gradients; 0: no clipping."""

  @property
  def clip_gradient_single_norm_to_value(self) -> float:
    """Maximum norm of each gradient; 0: no clipping."""

  @property
  def ema_decay(self) -> float:
    """Decay of the moving average of the variables; 0: no average."""

  def get_learning_rate(self, step_count: ArrayLike) -> Float[Array, '']:
    """Returns the learning rate of a step."""

  def get_grad_transformation(
    self,
    var_weight_hparams: Nested[base_layer.WeightHParams] | None = None,
    include_ema: bool = True,
  ) -> sharded_transforms.ShardedGradientTransformation:
    """Returns the chain of transformations for the declared variables."""


class BaseOptimizer(base_hyperparams.FiddleBaseParameterizable):
  """An optimizer: an update rule inside a common chain.

  The chain is: L1, L2, the rule (times -learning rate), decoupled weight decay,
  elastic weight consolidation, moving average. The first four are always
  present, so that enabling one does not change the structure of the state. The
  learner clips gradients before the chain.
  """

  # Adds weight * w, or weight * sign(w), to the clipped gradient.
  l2_regularizer_weight: float | None = value_domains.field(None, _FINITE)
  l1_regularizer_weight: float | None = value_domains.field(None, _FINITE)
  # Excludes variables with at most one dimension from L1 and L2.
  skip_lp_1d_vectors: bool = False
  # Adds -learning rate * weight * w to the update, as AdamW does. A dict maps
  # regular expressions, matched at the start of the variable's path, to
  # weights; the last one that matches counts.
  decoupled_weight_decay: float | Mapping[str, float] | None = (
    value_domains.field(None, _FINITE_BY_PATH)
  )
  # Maximum global norm of the gradients; 0: no clipping.
  clip_gradient_norm_to_value: float = value_domains.field(0.0, _NOT_NEGATIVE)
  # Maximum norm of each gradient; 0: no clipping.
  clip_gradient_single_norm_to_value: float = value_domains.field(
    0.0, _NOT_NEGATIVE
  )
  # Factor of the schedule.
  learning_rate: float = value_domains.field(0.0)
  lr_schedule: pax_fiddle.Config[schedules.BaseSchedule] | None = None
  # Decay of the moving average of the variables; 0: no average.
  ema_decay: float = value_domains.field(0.0, ge=0.0, lt=1.0)
  # Weight of elastic weight consolidation; 0: off.
  ewc_regularizer_weight: float = 0.0
  # Factor of that weight for each variable.
  ewc_weight_per_var: Any = None

  def __post_init__(self) -> None:
    super().__post_init__()
    self._check()
    schedule = self.lr_schedule
    self._lr_schedule: schedules.BaseSchedule | None = (
      schedule.Instantiate()
      if isinstance(schedule, pax_fiddle.Config)
      else schedule
    )
    self._var_weight_hparams: Nested[base_layer.WeightHParams] | None = None

  def get_learning_rate(self, step_count: ArrayLike) -> Float[Array, '']:
    """Returns learning_rate times the schedule at `step_count`.

    Raises:
      ValueError: lr_schedule is not set.
    """
    if self._lr_schedule is None:
      raise ValueError(
        f'{type(self).__name__}.lr_schedule is not set; for a constant rate'
        ' use schedules.Constant.config(value=1.0)'
      )
    value = self._lr_schedule.value_at(step_count)
    return jnp.float32(self.learning_rate) * value

  def get_grad_transformation(
    self,
    var_weight_hparams: Nested[base_layer.WeightHParams] | None = None,
    include_ema: bool = True,
  ) -> sharded_transforms.ShardedGradientTransformation:
    """Returns the chain of transformations.

    Args:
      var_weight_hparams: declarations of the variables, whose flags exclude
        some from regularization; None: all are regularized.
      include_ema: whether the chain ends with the moving average.
    """
    lr = self.get_learning_rate
    mask = None
    if var_weight_hparams:
      mask = regularization.lp_mask(var_weight_hparams)
    skip = self.skip_lp_1d_vectors
    l1, l2 = self.l1_regularizer_weight, self.l2_regularizer_weight
    chain = [
      regularization.apply_lp_regularizer(mask, l1, 1.0, skip),
      regularization.apply_lp_regularizer(mask, l2, 2.0, skip),
      self._update_rule(lr, var_weight_hparams),
      regularization.apply_decoupled_weight_decay(
        lr, mask, self.decoupled_weight_decay
      ),
    ]
    if self.ewc_regularizer_weight:
      chain.append(
        regularization.apply_ewc_regularization(
          lr, self.ewc_regularizer_weight, self.ewc_weight_per_var
        )
      )
    if self.ema_decay and include_ema:
      chain.append(regularization.apply_ema_weights(self.ema_decay))
    return sharded_transforms.sharded_chain(*chain)

  def _get_raw_grad_transformation(
    self, learning_rate_fn: sharded_transforms.LearningRateFn
  ) -> sharded_transforms.GradientTransformation:
    """Returns the update rule, scaled by -learning rate; subclasses define it.

    A rule may depend on the declarations of the variables,
    `self._var_weight_hparams`.

    Raises:
      NotImplementedError: the subclass does not define it.
    """
    raise NotImplementedError(
      f'{type(self).__name__} must define _get_raw_grad_transformation'
    )

  def _update_rule(
    self,
    learning_rate_fn: sharded_transforms.LearningRateFn,
    var_weight_hparams: Nested[base_layer.WeightHParams] | None,
  ) -> sharded_transforms.GradientTransformation:
    """Returns the update rule of variables with these declarations."""
    self._var_weight_hparams = var_weight_hparams
    return self._get_raw_grad_transformation(learning_rate_fn)

  def _check(self) -> None:
    if self.l1_regularizer_weight and self.l2_regularizer_weight:
      raise ValueError(
        'l1_regularizer_weight and l2_regularizer_weight exclude each other, '
        f'got {self.l1_regularizer_weight} and {self.l2_regularizer_weight}; '
        'set one to None'
      )
    lp = self.l1_regularizer_weight or self.l2_regularizer_weight
    if self.decoupled_weight_decay and lp:
      raise ValueError(
        'decoupled_weight_decay excludes l1_ and l2_regularizer_weight, got '
        f'{self.decoupled_weight_decay} and {lp}; set one to None'
      )
    if not 0.0 <= self.ema_decay < 1.0:
      raise ValueError(f'ema_decay must be in [0, 1), got {self.ema_decay}')
