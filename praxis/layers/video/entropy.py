# SPDX-License-Identifier: Apache-2.0
"""The entropy of signs: of a sample, and of their use over a batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_TINY = 1e-5
_Entropies = tuple[Float[Array, ''], Float[Array, '']]


def exact(x: Float[Array, 'B D'], *, is_hard: bool = False) -> _Entropies:
  """Returns the mean entropy of a sample, and that of the mean sample.

  Args:
    x: the channels over the temperature; a sign has the odds exp(4 x).
    is_hard: whether only the most probable signs count, with the gradient of
      the probabilities.
  """
  dims = x.shape[-1]
  signs = 2.0 * (np.arange(2**dims)[:, None] >> np.arange(dims) & 1) - 1.0
  affinity = 2.0 * x @ jnp.asarray(signs.T, x.dtype)
  probs = jax.nn.softmax(affinity)
  counted = probs
  if is_hard:
    best = jax.nn.one_hot(jnp.argmax(affinity, -1), 2**dims, dtype=x.dtype)
    counted = probs + jax.lax.stop_gradient(best - probs)
  sample = -jnp.sum(counted * jax.nn.log_softmax(affinity), axis=-1)
  return jnp.mean(sample), _entropy(jnp.mean(counted, axis=0))


def factorized(x: Float[Array, 'B D'], groups: int) -> _Entropies:
  """Returns the same, that of the batch as the mean over groups of channels.

  Groups are neighbouring channels, and channels `groups` apart.
  """
  batch, dims = x.shape
  odds = jnp.stack([2.0 * x, -2.0 * x], axis=-1)
  probs = jax.nn.softmax(odds)
  sample = -jnp.sum(probs * jax.nn.log_softmax(odds), axis=(-2, -1))
  size = dims // groups
  parts = probs.reshape(batch, groups, size, 2)
  if size > 1:
    apart = probs.reshape(batch, size, groups, 2).swapaxes(1, 2)
    parts = jnp.concatenate([parts, apart], axis=1)
  joint = jnp.ones([*parts.shape[:2], 1], x.dtype)
  for i in range(size):
    joint = joint[..., None] * parts[:, :, i, None, :]
    joint = joint.reshape(*parts.shape[:2], -1)
  return jnp.mean(sample), jnp.mean(_entropy(jnp.mean(joint, axis=0)))


def _entropy(probs: Float[Array, '*B K']) -> Float[Array, '*B']:
  return -jnp.sum(probs * jnp.log(probs + _TINY), axis=-1)
