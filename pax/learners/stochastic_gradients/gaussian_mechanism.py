# SPDX-License-Identifier: Apache-2.0
"""The Gaussian mechanism of DP-SGD: per-example clipping and Gaussian noise.

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

from pax.learners import clipping
from praxis import base_layer, pytypes
from praxis.pytypes import Nested

JTensor = pytypes.JTensor


class Clipped(NamedTuple):
  """The mean of clipped per-example gradients."""

  mean: Nested[JTensor]
  # Fraction of gradients whose norm exceeded the bound.
  fraction: Float[Array, '']


def norms(grads: Sequence[JTensor]) -> Float[Array, ' N']:
  """Returns the global norm of the gradients of each example."""
  squares = [
    jnp.sum(jnp.square(g.astype(jnp.float32)), axis=tuple(range(1, g.ndim)))
    for g in grads
  ]
  return jnp.sqrt(sum(squares))


def clip_and_mean(
  grads: Nested[Float[Array, 'N ...']], bound: Float[Array, '*N'] | float
) -> Clipped:
  """Clips the gradient of each example to a global norm and averages them.

  Args:
    grads: Gradients with a leading example dimension.
    bound: Maximum norm, for all examples or for each.
  """
  example_norms = norms(jax.tree.leaves(grads))
  weights = clipping.clipping_scale(example_norms, bound)
  mean = jax.tree.map(
    lambda g: (
      jnp.tensordot(weights, g.astype(jnp.float32), 1) / g.shape[0]
    ).astype(g.dtype),
    grads,
  )
  return Clipped(mean, jnp.mean(example_norms > bound))


def group_mean(
  values: Float[Array, 'N ...'], size: int
) -> Float[Array, 'M ...']:
  """Returns the means over groups of `size` consecutive examples."""
  return jnp.mean(jnp.reshape(values, [-1, size, *values.shape[1:]]), axis=1)


def group_means(
  grads: Nested[Float[Array, 'N ...']], size: int
) -> Nested[Float[Array, 'M ...']]:
  """Returns `group_mean` of each gradient."""
  return jax.tree.map(lambda g: group_mean(g, size), grads)


def num_replicas() -> int:
  """Returns the number of replicas that share the batch; 1 without pmap."""
  if not base_layer.is_running_under_pmap():
    return 1
  return jax.lax.axis_size(base_layer.PMAP_PARALLEL_AXIS_NAME)


def add_noise(
  grads: Nested[JTensor], stddev: float, key: pytypes.PRNGKey
) -> Nested[JTensor]:
  """Adds Gaussian noise that has deviation `stddev` in the sum over replicas.

  Replicas add independent noise. Its variances sum, so each of n replicas adds
  noise of deviation stddev / sqrt(n).
  """
  leaves, tree = jax.tree.flatten(grads)
  stddev_of_replica = stddev / num_replicas() ** 0.5
  noisy = [
    g + (stddev_of_replica * jax.random.normal(k, g.shape)).astype(g.dtype)
    for g, k in zip(leaves, jax.random.split(key, len(leaves)), strict=True)
  ]
  return jax.tree.unflatten(tree, noisy)


def check_settings(
  owner: object,
  *,
  bound: float | None,
  noise_multiplier: float,
  use_loss_weight_scaling: bool,
) -> None:
  """Checks that the contribution of each example is bounded.

  Args:
    owner: The gradient function, named in messages.
    bound: Its `l2_norm_clip`.
    noise_multiplier: Its `noise_multiplier`.
    use_loss_weight_scaling: Its `use_loss_weight_scaling`.

  Raises:
    ValueError: there is no bound, or there is noise but the bound depends on
      the weights of the examples.
  """
  name = type(owner).__name__
  if not (bound and bound > 0.0):
    raise ValueError(f'{name}.l2_norm_clip must be above 0, got {bound}')
  if use_loss_weight_scaling and noise_multiplier:
    raise ValueError(
      f'{name}.use_loss_weight_scaling=True does not bound the contribution of'
      ' an example, so noise gives no privacy guarantee; set noise_multiplier'
      f' to 0, got {noise_multiplier}'
    )
