# SPDX-License-Identifier: Apache-2.0
"""Norms of gradients, and their scaling to a largest norm."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from praxis import pytypes

JTensor = pytypes.JTensor
Nested = pytypes.Nested


class ScaledGradients(NamedTuple):
  """Gradients after clipping, and what was seen on the way."""

  grads: Nested[JTensor]
  # Norm of all gradients together, before and after clipping.
  raw_norm: Float[Array, '']
  clipped_norm: Float[Array, '']
  # What the gradients were multiplied by; with one scale per variable, the
  # ratio of the two norms.
  scale: Float[Array, '']


def squared_norm(x: JTensor) -> Float[Array, '']:
  """Returns the sum of the squares of all elements, in float32."""
  return jnp.sum(jnp.square(x.astype(jnp.float32)))


def global_norm(tree: Nested[JTensor]) -> Float[Array, '']:
  """Returns the Euclidean norm of all leaves together, in float32."""
  squares = [squared_norm(x) for x in jax.tree.leaves(tree)]
  return jnp.sqrt(jnp.asarray(sum(squares), jnp.float32))


def clip(
  grads: Nested[JTensor], *, global_limit: float, single_limit: float
) -> ScaledGradients:
  """Returns gradients whose norm is at most a limit; 0 means no limit.

  `global_limit` is for the norm of all gradients together, `single_limit` for
  that of each. ValueError if both are given.
  """
  if global_limit and single_limit:
    raise ValueError(
      f'clip_gradient_norm_to_value={global_limit} and'
      f' clip_gradient_single_norm_to_value={single_limit} exclude each other;'
      ' set one to 0'
    )
  norm = global_norm(grads)
  if single_limit:
    grads = jax.tree.map(lambda g: _clip_one(g, single_limit), grads)
    clipped = global_norm(grads)
    ratio = clipped / jnp.maximum(norm, jnp.finfo(jnp.float32).tiny)
    return ScaledGradients(grads, norm, clipped, ratio)
  scale = _scale(norm, global_limit) if global_limit else jnp.float32(1.0)
  if global_limit:
    grads = jax.tree.map(lambda g: g * scale.astype(g.dtype), grads)
  return ScaledGradients(grads, norm, norm * scale, scale)


def is_valid(norm: Float[Array, ''], largest: float) -> Bool[Array, '']:
  """Returns whether `norm` is finite and, unless `largest` is 0, below it.

  A norm is finite only when every gradient is.
  """
  valid = jnp.isfinite(norm)
  return valid & (norm < largest) if largest else valid


def _clip_one(g: JTensor, limit: float) -> JTensor:
  return g * _scale(jnp.sqrt(squared_norm(g)), limit).astype(g.dtype)


def _scale(norm: Float[Array, ''], limit: float) -> Float[Array, '']:
  tiny = jnp.finfo(jnp.float32).tiny
  return jnp.minimum(1.0, limit / jnp.maximum(norm, tiny))
