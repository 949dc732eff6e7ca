# SPDX-License-Identifier: Apache-2.0
"""Grafting: the size of Shampoo's update is that of a simpler optimizer's.

References:
  Agarwal et al., https://arxiv.org/abs/2002.11803
"""

from __future__ import annotations

import enum

import jax.numpy as jnp

from praxis.optimizers import update_math
from praxis.pytypes import JTensor


class GraftingType(enum.IntEnum):
  """The optimizer that tells the size of the update of a variable."""

  # g
  SGD = 1
  # g / (sqrt(sum g^2) + epsilon)
  ADAGRAD = 2
  # g / (sqrt(mean g^2) + epsilon)
  RMSPROP = 3
  # RMSPROP of g / |g|
  RMSPROP_NORMALIZED = 4
  # sign(g)
  SQRT_N = 5
  # ADAGRAD of g / |g|
  ADAGRAD_NORMALIZED = 6

  @property
  def sums(self) -> bool:
    """Whether squares are added up."""
    return self in (GraftingType.ADAGRAD, GraftingType.ADAGRAD_NORMALIZED)

  @property
  def averages(self) -> bool:
    """Whether squares are averaged over time."""
    return self in (GraftingType.RMSPROP, GraftingType.RMSPROP_NORMALIZED)

  @property
  def normalizes(self) -> bool:
    """Whether gradients are first divided by their norm."""
    return self in (
      GraftingType.ADAGRAD_NORMALIZED,
      GraftingType.RMSPROP_NORMALIZED,
    )

  @property
  def has_squares(self) -> bool:
    """Whether squares of gradients are kept at all."""
    return self.sums or self.averages


def graft(
  kind: GraftingType,
  grad: JTensor,
  squares: JTensor,
  *,
  decay: float,
  epsilon: float,
  largest_rms: float | None,
) -> tuple[JTensor, JTensor]:
  """Returns (the simpler optimizer's update, the squares it keeps).

  `squares` is ignored by kinds that keep none. `largest_rms` clips the update
  of the kinds that average squares; None or 0 does not.
  """
  if kind == GraftingType.SGD:
    return grad, squares
  if kind == GraftingType.SQRT_N:
    return jnp.sign(grad), squares
  if kind.normalizes:
    grad = grad / (jnp.linalg.norm(grad) + 1e-16)
  old, new = (1.0, 1.0) if kind.sums else ema_weights(decay)
  squares = old * squares + new * jnp.square(grad)
  update = grad / (jnp.sqrt(squares) + epsilon)
  if kind.averages:
    update = update_math.clip_rms(update, largest_rms)
  return update, squares


def ema_weights(decay: float) -> tuple[float, float]:
  """Returns the weights of old and new; a decay of 1 adds them up."""
  return decay, 1.0 if decay == 1.0 else 1.0 - decay
