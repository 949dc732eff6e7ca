# SPDX-License-Identifier: Apache-2.0
"""Classifier-free guidance: each prompt with, then without its condition.

Rows are [N samples with a, N without a, N with b, ...]; both parts of a pair
of rows read the tokens that are drawn from their mixed logits.

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
class Guide:
  """Mixes the logits of pairs; P prompts, N samples."""

  # [1 or P, 1 or N, 1]
  scale: Float[Array, 'p n 1'] | float
  num_samples: int

  @classmethod
  def of(
    cls, scale: Sequence[float] | float | Array, num_samples: int
  ) -> Guide:
    """Returns the guide of a scale: one, one a sample, or [P] or [P, N]."""
    if isinstance(scale, Sequence):
      if len(scale) != num_samples:
        raise ValueError(
          'cf_guidance_scale must be a number, or one for each of '
          f'{num_samples} samples, got {list(scale)}'
        )
      return cls(jnp.asarray(scale)[jnp.newaxis, :, jnp.newaxis], num_samples)
    if not isinstance(scale, jax.Array):
      return cls(float(scale), num_samples)
    by_sample = scale.ndim == 2 and scale.shape[1] == num_samples
    if scale.ndim != 1 and not by_sample:
      raise ValueError(
        f'cf_guidance_scale must have shape [batch] or [batch, {num_samples}], '
        f'got {list(scale.shape)}'
      )
    shape = (*scale.shape, *[1] * (3 - scale.ndim))
    return cls(scale.reshape(shape), num_samples)

  def mix(self, logits: Float[Array, 'R V']) -> Float[Array, 'G V']:
    """Returns the guided logits, one row for each pair."""
    pairs = self._split(logits)
    guided, free = pairs[:, 0], pairs[:, 1]
    mixed = free + self.scale * (guided - free)
    return mixed.reshape(-1, logits.shape[-1])

  def to_both(self, x: Array) -> Array:
    """Gives each part of a pair what belongs to it."""
    x = x.reshape(-1, 1, self.num_samples, *x.shape[1:])
    return jnp.repeat(x, 2, axis=1).reshape(-1, *x.shape[3:])

  def conditioned(self, x: Array) -> Array:
    """Returns the rows of prompts with their condition."""
    return self._split(x)[:, 0].reshape(-1, *x.shape[1:])

  def _split(self, x: Array) -> Array:
    return x.reshape(-1, 2, self.num_samples, *x.shape[1:])
