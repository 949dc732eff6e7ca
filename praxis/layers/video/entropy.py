# SPDX-License-Identifier: Apache-2.0
"""Entropies of sign codes: per sample, and of the batch average.

References: MAGVIT-v2, https://arxiv.org/abs/2310.05737
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_EPSILON = 1e-5
_Entropies = tuple[Float[Array, ''], Float[Array, '']]


def exact(x: Float[Array, 'B D'], *, is_hard: bool = False) -> _Entropies:
  """Returns the mean entropy per sample, and the entropy of the batch average.

  Args:
    x: the channels over the temperature; the odds of a positive sign are
      exp(4 x).
    is_hard: whether to use one-hot probabilities of the most probable code,
      with a straight-through gradient.
  """
  dims = x.shape[-1]
  signs = 2.0 * (np.arange(2**dims)[:, None] >> np.arange(dims) & 1) - 1.0
  affinity = 2.0 * x @ jnp.asarray(signs.T, x.dtype)
  probs = jax.nn.softmax(affinity)
  target_probs = probs
  if is_hard:
    one_hot = jax.nn.one_hot(jnp.argmax(affinity, -1), 2**dims, dtype=x.dtype)
    target_probs = probs + jax.lax.stop_gradient(one_hot - probs)
  sample = -jnp.sum(target_probs * jax.nn.log_softmax(affinity), axis=-1)
  return jnp.mean(sample), _entropy(jnp.mean(target_probs, axis=0))


def factorized(x: Float[Array, 'B D'], groups: int) -> _Entropies:
  """Returns the entropies of `exact`, with a factorized batch entropy.

  The batch entropy is averaged over groups of channels: adjacent channels, and
  channels with a stride of `groups`.

  Args:
    x: the channels over the temperature.
    groups: number of groups of adjacent channels.
  """
  batch, dims = x.shape
  odds = jnp.stack([2.0 * x, -2.0 * x], axis=-1)
  probs = jax.nn.softmax(odds)
  sample = -jnp.sum(probs * jax.nn.log_softmax(odds), axis=(-2, -1))
  size = dims // groups
  grouped = probs.reshape(batch, groups, size, 2)
  if size > 1:
    strided = probs.reshape(batch, size, groups, 2).swapaxes(1, 2)
    grouped = jnp.concatenate([grouped, strided], axis=1)
  joint = jnp.ones([*grouped.shape[:2], 1], x.dtype)
  for i in range(size):
    joint = joint[..., None] * grouped[:, :, i, None, :]
    joint = joint.reshape(*grouped.shape[:2], -1)
  return jnp.mean(sample), jnp.mean(_entropy(jnp.mean(joint, axis=0)))


def _entropy(probs: Float[Array, '*B K']) -> Float[Array, '*B']:
  return -jnp.sum(probs * jnp.log(probs + _EPSILON), axis=-1)
