# SPDX-License-Identifier: Apache-2.0
"""Gradient norms and clipping by norm."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from praxis import pytypes
from praxis.pytypes import Nested

JTensor = pytypes.JTensor

# Name scope of the check of the gradient norm, to find it in a jaxpr.
CHECK_SCOPE = 'is_valid_step'


class ScaledGradients(NamedTuple):
  """Clipped gradients and their norms."""

  grads: Nested[JTensor]
  # Global norm before and after clipping.
  raw_norm: Float[Array, '']
  clipped_norm: Float[Array, '']
  # Factor of all gradients; 1 with clipping per variable, which has no common
  # factor.
  scale: Float[Array, '']


def squared_norm(x: JTensor) -> Float[Array, '']:
  """Returns the sum of squares of all elements, in float32."""
  return jnp.sum(jnp.square(x.astype(jnp.float32)))


def global_norm(tree: Nested[JTensor]) -> Float[Array, '']:
  """Returns the Euclidean norm over all leaves, in float32."""
  squares = [squared_norm(x) for x in jax.tree.leaves(tree)]
  return jnp.sqrt(jnp.asarray(sum(squares), jnp.float32))


def clip(
  grads: Nested[JTensor], *, global_limit: float, single_limit: float
) -> ScaledGradients:
  """Clips gradients by their global norm, or each by its own norm.

  Args:
    grads: Gradients.
    global_limit: Maximum of the norm over all gradients; 0 is no limit.
    single_limit: Maximum of the norm of each gradient; 0 is no limit.

  Raises:
    ValueError: both limits are set.
  """
  if global_limit and single_limit:
    raise ValueError(
      f'clip_gradient_norm_to_value={global_limit} and'
      f' clip_gradient_single_norm_to_value={single_limit} exclude each other;'
      ' set one to 0'
    )
  norm = global_norm(grads)
  if single_limit:
    grads = jax.tree.map(lambda g: _clip_by_own_norm(g, single_limit), grads)
    return ScaledGradients(grads, norm, global_norm(grads), jnp.float32(1.0))
  scale = (
    clipping_scale(norm, global_limit) if global_limit else jnp.float32(1.0)
  )
  if global_limit:
    grads = jax.tree.map(lambda g: g * scale.astype(g.dtype), grads)
  return ScaledGradients(grads, norm, norm * scale, scale)


def clipping_scale(
  norm: Float[Array, '*N'], limit: Float[Array, '*N'] | float
) -> Float[Array, '*N']:
  """Returns factors in [0, 1] that shorten gradients to the limit.

  A limit of 0, that of an example without weight, keeps a gradient of 0.

  Args:
    norm: of each gradient.
    limit: maximum norm, for all gradients or for each.
  """
  tiny = jnp.finfo(jnp.float32).tiny
  return jnp.minimum(1.0, limit / jnp.maximum(norm, tiny))


def is_valid(norm: Float[Array, ''], limit: float) -> Bool[Array, '']:
  """Returns whether a global norm is finite and below `limit`, if not 0.

  The norm is finite only if every gradient is finite.
  """
  with jax.named_scope(CHECK_SCOPE):
    valid = jnp.isfinite(norm)
    return valid & (norm < limit) if limit else valid


def _clip_by_own_norm(g: JTensor, limit: float) -> JTensor:
  return g * clipping_scale(jnp.sqrt(squared_norm(g)), limit).astype(g.dtype)
