# SPDX-License-Identifier: Apache-2.0
"""Optimizers with update rules of Optax."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from praxis import base_layer
from praxis.optimizers import base_optimizer, sharded_transforms
from praxis.pytypes import Nested

_Hparams = Nested[base_layer.WeightHParams]


class OptaxOptimizer(base_optimizer.BaseOptimizer):
  """An Optax transformation inside the common chain of optimizers.

  `grad_tx` contains its own learning rate. `learning_rate` is only reported,
  and used by decoupled weight decay.
  """

  # The transformation, for example optax.adamw(1e-3).
  grad_tx: Any = None

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.grad_tx is None:
      raise ValueError(
        'OptaxOptimizer.grad_tx is not set; give it an Optax transformation,'
        ' for example optax.adamw(1e-3)'
      )

  def get_learning_rate(self, step_count: ArrayLike) -> Float[Array, '']:
    if self._lr_schedule is None:
      return jnp.float32(self.learning_rate)
    return super().get_learning_rate(step_count)

  def _get_raw_grad_transformation(
    self,
    learning_rate_fn: sharded_transforms.LearningRateFn,
  ) -> sharded_transforms.GradientTransformation:
    return self.grad_tx


class Lamb(base_optimizer.BaseOptimizer):
  """Adam with layerwise adaptation.

  References:
    You et al., https://arxiv.org/abs/1904.00962
  """

  b1: float = 0.9
  b2: float = 0.999
  eps: float = 1e-6
  eps_root: float = 0.0
  weight_decay: float = 0.0
  # Which variables decay: a tree of bools or a function that returns one.
  mask: Any = None

  def _get_raw_grad_transformation(
    self,
    learning_rate_fn: sharded_transforms.LearningRateFn,
  ) -> sharded_transforms.GradientTransformation:
    import optax  # Slow to import; needed when built.

    return optax.lamb(
      learning_rate_fn,
      b1=self.b1,
      b2=self.b2,
      eps=self.eps,
      eps_root=self.eps_root,
      weight_decay=self.weight_decay,
      mask=self.mask,
    )


class Lars(base_optimizer.BaseOptimizer):
  """Momentum with layerwise adaptation.

  References:
    You et al., https://arxiv.org/abs/1708.03888
  """

  weight_decay: float = 0.0
  # Which variables decay, and which are adapted: a bool, a tree of bools or a
  # function that returns one.
  weight_decay_mask: Any = True
  trust_coefficient: float = 0.001
  eps: float = 0.0
  trust_ratio_mask: Any = True
  momentum: float = 0.9
  nesterov: bool = False

  def _get_raw_grad_transformation(
    self,
    learning_rate_fn: sharded_transforms.LearningRateFn,
  ) -> sharded_transforms.GradientTransformation:
    import optax  # Slow to import; needed when built.

    return optax.lars(
      learning_rate_fn,
      weight_decay=self.weight_decay,
      weight_decay_mask=self.weight_decay_mask,
      trust_coefficient=self.trust_coefficient,
      eps=self.eps,
      trust_ratio_mask=self.trust_ratio_mask,
      momentum=self.momentum,
      nesterov=self.nesterov,
    )


class Adafactor(base_optimizer.BaseOptimizer):
  """Optax's Adafactor; its factored moments are not sharded.

  References:
    Shazeer and Stern, https://arxiv.org/abs/1804.04235
  """

  min_dim_size_to_factor: int = 128
  decay_rate: float = 0.8
  decay_offset: int = 0
  multiply_by_parameter_scale: bool = True
  clip_threshold: float | None = 1.0
  momentum: float | None = None
  dtype_momentum: str = 'float32'
  weight_decay_rate: float | None = None
  eps: float = 1e-30
  factored: bool = True

  def _get_raw_grad_transformation(
    self,
    learning_rate_fn: sharded_transforms.LearningRateFn,
  ) -> sharded_transforms.GradientTransformation:
    import optax  # Slow to import; needed when built.

    return optax.adafactor(
      learning_rate=learning_rate_fn,
      min_dim_size_to_factor=self.min_dim_size_to_factor,
      decay_rate=self.decay_rate,
      decay_offset=self.decay_offset,
      multiply_by_parameter_scale=self.multiply_by_parameter_scale,
      clipping_threshold=self.clip_threshold,
      momentum=self.momentum,
      dtype_momentum=self.dtype_momentum,
      weight_decay_rate=self.weight_decay_rate,
      eps=self.eps,
      factored=self.factored,
    )
