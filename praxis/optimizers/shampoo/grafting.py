# SPDX-License-Identifier: Apache-2.0
"""Grafting: Shampoo's update gets the norm of a simpler optimizer's update.

References:
  Agarwal et al., https://arxiv.org/abs/2002.11803
"""

from __future__ import annotations

import enum

import jax.numpy as jnp

from praxis.optimizers import update_math
from praxis.pytypes import JTensor


class GraftingType(enum.IntEnum):
  """The optimizer that determines the norm of the update of a variable."""

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
    """Whether squared gradients are summed."""
    return self in (GraftingType.ADAGRAD, GraftingType.ADAGRAD_NORMALIZED)

  @property
  def averages(self) -> bool:
    """Whether squared gradients are averaged over time."""
    return self in (GraftingType.RMSPROP, GraftingType.RMSPROP_NORMALIZED)

  @property
  def normalizes(self) -> bool:
    """Whether gradients are normalized first."""
    return self in (
      GraftingType.ADAGRAD_NORMALIZED,
      GraftingType.RMSPROP_NORMALIZED,
    )

  @property
  def has_squares(self) -> bool:
    """Whether the state has squared gradients."""
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
  """Returns the simpler optimizer's update and its new squared gradients.

  Args:
    kind: the optimizer.
    grad: the gradient.
    squares: accumulated squared gradients; ignored if the kind has none.
    decay: decay of the squares.
    epsilon: added to their root.
    largest_rms: maximum RMS of the update for kinds that average; None or 0: no
      clipping.
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
  """Returns (old weight, new weight); a decay of 1 sums."""
  return decay, 1.0 if decay == 1.0 else 1.0 - decay
