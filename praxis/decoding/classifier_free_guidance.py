# SPDX-License-Identifier: Apache-2.0
"""Classifier-free guidance: mixed logits of conditional and unconditional rows.

With N samples, the rows of a batch are N conditional rows of prompt a, N
unconditional rows of a, N conditional rows of b, and so on. Both rows of a pair
read the token that is sampled from their mixed logits.

References: Stay on topic with Classifier-Free Guidance,
https://arxiv.org/abs/2306.17806
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@dataclasses.dataclass(frozen=True)
class ClassifierFreeGuidance:
  """Mixes the logits of row pairs of P prompts with N samples each."""

  # The guidance scale, [1 or P, 1 or N, 1].
  scale: Float[Array, 'p n 1'] | float
  num_samples: int

  @classmethod
  def from_scale(
    cls, scale: Sequence[float] | float | Array, num_samples: int
  ) -> ClassifierFreeGuidance:
    """Returns the guidance of a scale: one, one per sample, [P] or [P, N].

    Raises:
      ValueError: the scale has another shape.
    """
    if isinstance(scale, Sequence):
      if len(scale) != num_samples:
        raise ValueError(
          'cf_guidance_scale must be a number, or one for each of '
          f'{num_samples} samples, got {list(scale)}'
        )
      return cls(jnp.asarray(scale)[jnp.newaxis, :, jnp.newaxis], num_samples)
    if not isinstance(scale, jax.Array):
      return cls(float(scale), num_samples)
    is_per_sample = scale.ndim == 2 and scale.shape[1] == num_samples
    if scale.ndim != 1 and not is_per_sample:
      raise ValueError(
        f'cf_guidance_scale must have shape [batch] or [batch, {num_samples}], '
        f'got {list(scale.shape)}'
      )
    shape = (*scale.shape, *[1] * (3 - scale.ndim))
    return cls(scale.reshape(shape), num_samples)

  def mix(self, logits: Float[Array, 'R V']) -> Float[Array, 'G V']:
    """Returns u + scale * (c - u) of the logits of each pair (c, u)."""
    pairs = self._split_pairs(logits)
    conditional, unconditional = pairs[:, 0], pairs[:, 1]
    mixed = unconditional + self.scale * (conditional - unconditional)
    return mixed.reshape(-1, logits.shape[-1])

  def broadcast_to_pairs(self, x: Array) -> Array:
    """Returns a copy of each row of x for both rows of its pair."""
    x = x.reshape(-1, 1, self.num_samples, *x.shape[1:])
    return jnp.repeat(x, 2, axis=1).reshape(-1, *x.shape[3:])

  def take_conditional(self, x: Array) -> Array:
    """Returns the conditional rows."""
    return self._split_pairs(x)[:, 0].reshape(-1, *x.shape[1:])

  def _split_pairs(self, x: Array) -> Array:
    return x.reshape(-1, 2, self.num_samples, *x.shape[1:])
