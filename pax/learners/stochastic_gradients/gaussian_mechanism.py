# SPDX-License-Identifier: Apache-2.0
"""Clipping and noise: what makes a gradient tell little of each example.

References:
  Abadi et al., https://arxiv.org/abs/1607.00133
  Ponomareva et al., https://arxiv.org/abs/2303.00654
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer, pytypes

JTensor = pytypes.JTensor
Nested = pytypes.Nested


class Clipped(NamedTuple):
  """Gradients of several examples, clipped one by one and averaged."""

  mean: Nested[JTensor]
  # How many of them were longer than the bound, as a fraction.
  fraction: Float[Array, '']


def norms(grads: Sequence[JTensor]) -> Float[Array, ' N']:
  """Returns for each example the norm of all its gradients together."""
  squares = [
    jnp.sum(jnp.square(g.astype(jnp.float32)), axis=tuple(range(1, g.ndim)))
    for g in grads
  ]
  return jnp.sqrt(sum(squares))


def clip_and_mean(
  grads: Nested[Float[Array, 'N ...']], bound: Float[Array, '*N'] | float
) -> Clipped:
  """Returns the mean of gradients, each first scaled to a norm of `bound`.

  Shorter ones stay. There may be a bound for each example.
  """
  divisor = jnp.maximum(norms(jax.tree.leaves(grads)) / bound, 1.0)
  weights = 1.0 / divisor
  mean = jax.tree.map(
    lambda g: (
      jnp.tensordot(weights, g.astype(jnp.float32), 1) / g.shape[0]
    ).astype(g.dtype),
    grads,
  )
  return Clipped(mean, jnp.mean(divisor > 1.0))


def group_means(
  grads: Nested[Float[Array, 'N ...']], size: int
) -> Nested[Float[Array, 'M ...']]:
  """Returns the mean of every `size` consecutive examples."""
  return jax.tree.map(
    lambda g: jnp.mean(jnp.reshape(g, [-1, size, *g.shape[1:]]), axis=1), grads
  )


def replicas() -> int:
  """Returns over how many replicas a batch is split, each with its own part."""
  if not base_layer.is_running_under_pmap():
    return 1
  return jax.lax.axis_size(base_layer.PMAP_PARALLEL_AXIS_NAME)


def add_noise(
  grads: Nested[JTensor], stddev: float, key: pytypes.PRNGKey
) -> Nested[JTensor]:
  """Returns gradients plus Gaussian noise, `stddev` once replicas are added.

  Each replica adds its own: variances add up, so it has 1 / sqrt(n) of it.
  """
  leaves, tree = jax.tree.flatten(grads)
  share = stddev / replicas() ** 0.5
  noisy = [
    g + (share * jax.random.normal(k, g.shape)).astype(g.dtype)
    for g, k in zip(leaves, jax.random.split(key, len(leaves)), strict=True)
  ]
  return tree.unflatten(noisy)


def check(
  owner: object,
  *,
  bound: float | None,
  noise_multiplier: float,
  use_loss_weight_scaling: bool,
) -> None:
  """Raises ValueError for settings that clip nothing, or promise too much."""
  name = type(owner).__name__
  if not (bound and bound > 0.0):
    raise ValueError(f'{name}.l2_norm_clip must be above 0, got {bound}')
  if use_loss_weight_scaling and noise_multiplier:
    raise ValueError(
      f'{name}.use_loss_weight_scaling=True bounds no example, so noise proves'
      f' nothing; set noise_multiplier to 0, got {noise_multiplier}'
    )
