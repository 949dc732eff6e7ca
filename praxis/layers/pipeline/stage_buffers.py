# SPDX-License-Identifier: Apache-2.0
"""What moves between the stages of a pipeline.

Every array has a leading axis of stages, which is split over devices, so that
each function here is local to a device or sends to a neighbour.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def shift(tree: Any) -> Any:
  """Returns every stage's value one stage later, zeros at the first."""

  def one(x: Array) -> Array:
    padding = [(1, -1, 0)] + [(0, 0, 0)] * (x.ndim - 1)
    return jax.lax.pad(x, jnp.zeros((), x.dtype), padding)

  return jax.tree.map(one, tree)


def rotate(tree: Any, by: int) -> Any:
  """Returns every stage's value `by` stages later, around the end."""
  return jax.tree.map(lambda x: jnp.roll(x, by, axis=0), tree)


def put_at_stage(tree: Any, stage: int, values: Any) -> Any:
  """Returns the tree with a stage's part replaced by that of the values.

  The values have an axis of stages, too, or one of length 1.
  """

  def one(x: Array, value: Array) -> Array:
    here = jnp.arange(x.shape[0]) == stage
    return jnp.where(_columns(here, x.ndim), value, x)

  return jax.tree.map(one, tree, values)


def select(here: Bool[Array, 'S'], tree: Any, other: Any) -> Any:
  """Returns the tree at the stages where `here` is true, `other` elsewhere."""
  return jax.tree.map(
    lambda a, b: jnp.where(_columns(here, a.ndim), a, b), tree, other
  )


def read_slot(buffer: Any, slot: Int[Array, '']) -> Any:
  """Returns [stages, ...] for a buffer [stages, slots, ...]."""
  return jax.tree.map(
    lambda x: jax.lax.dynamic_index_in_dim(x, slot, 1, keepdims=False), buffer
  )


def write_slot(buffer: Any, slot: Int[Array, ''], values: Any) -> Any:
  """Returns the buffer with the values [stages, ...] in a slot."""
  return jax.tree.map(
    lambda x, v: jax.lax.dynamic_update_index_in_dim(x, v, slot, 1),
    buffer,
    values,
  )


def first_stage_only(tree: Any, num_stages: int) -> Any:
  """Returns [stages, ...] with the tree at the first stage, else zeros."""

  def one(x: Array) -> Array:
    rest = jnp.zeros((num_stages - 1, *x.shape), x.dtype)
    return jnp.concatenate([x[jnp.newaxis], rest])

  return jax.tree.map(one, tree)


def read_stream(stream: Any, delay: int) -> Any:
  """Returns the rows of all microbatches, in their order.

  An output enters the stream so many iterations after its input left.
  """

  def one(x: Array) -> Array:
    x = jnp.roll(x, -delay, axis=1)
    return x.reshape(-1, *x.shape[2:])

  return jax.tree.map(one, stream)


def nans_like(tree: Any) -> Any:
  """Returns a tree of nan, but for arrays that cannot hold any."""

  def one(x: Array) -> Array:
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    return jnp.full_like(x, jnp.nan) if is_float else x

  return jax.tree.map(one, tree)


def _columns(x: Array, rank: int) -> Array:
  return x.reshape(-1, *[1] * (rank - 1))
