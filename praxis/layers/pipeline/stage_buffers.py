# SPDX-License-Identifier: Apache-2.0
"""Buffers with a leading axis of stages, and shifts along it.

The axis is sharded over devices, so that each function is either local or a
collective permute to a neighbor.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from praxis.pytypes import NestedJTensor


def shift(tree: NestedJTensor) -> NestedJTensor:
  """Shifts every stage's value to the next stage; the first becomes zeros."""

  def shift_array(x: Array) -> Array:
    padding = [(1, -1, 0)] + [(0, 0, 0)] * (x.ndim - 1)
    return jax.lax.pad(x, jnp.zeros((), x.dtype), padding)

  return jax.tree.map(shift_array, tree)


def rotate(tree: NestedJTensor, offset: int) -> NestedJTensor:
  """Shifts every stage's value by `offset` stages, cyclically."""
  return jax.tree.map(lambda x: jnp.roll(x, offset, axis=0), tree)


def set_stage(
  tree: NestedJTensor, stage: int, values: NestedJTensor
) -> NestedJTensor:
  """Replaces one stage's value.

  Args:
    tree: arrays [S, ...].
    stage: index of the stage.
    values: arrays [S, ...] or [1, ...].
  """

  def set_array(x: Array, value: Array) -> Array:
    is_stage = jnp.arange(x.shape[0]) == stage
    return jnp.where(_expand(is_stage, x.ndim), value, x)

  return jax.tree.map(set_array, tree, values)


def select(
  condition: Bool[Array, ' S'], tree: NestedJTensor, other: NestedJTensor
) -> NestedJTensor:
  """Returns the values of `tree` at stages where true, else of `other`."""
  return jax.tree.map(
    lambda x, y: jnp.where(_expand(condition, x.ndim), x, y), tree, other
  )


def read_slot(buffer: NestedJTensor, slot: Int[Array, '']) -> NestedJTensor:
  """Returns one slot [S, ...] of a buffer [S, slots, ...]."""
  return jax.tree.map(
    lambda x: jax.lax.dynamic_index_in_dim(x, slot, 1, keepdims=False), buffer
  )


def write_slot(
  buffer: NestedJTensor, slot: Int[Array, ''], values: NestedJTensor
) -> NestedJTensor:
  """Returns a buffer [S, slots, ...] with one slot replaced."""
  return jax.tree.map(
    lambda x, value: jax.lax.dynamic_update_index_in_dim(x, value, slot, 1),
    buffer,
    values,
  )


def at_first_stage(tree: NestedJTensor, num_stages: int) -> NestedJTensor:
  """Returns [S, ...] with the tree at the first stage, zeros elsewhere."""

  def pad(x: Array) -> Array:
    zeros = jnp.zeros((num_stages - 1, *x.shape), x.dtype)
    return jnp.concatenate([x[jnp.newaxis], zeros])

  return jax.tree.map(pad, tree)


def read_stream(stream: NestedJTensor, delay: int) -> NestedJTensor:
  """Returns the outputs [microbatches, ...] of a stream [S, slots, ...].

  Args:
    stream: the buffer of inputs, overwritten by outputs.
    delay: iterations between reading an input and writing its output.
  """

  def read(x: Array) -> Array:
    x = jnp.roll(x, -delay, axis=1)
    return x.reshape(-1, *x.shape[2:])

  return jax.tree.map(read, stream)


def nans_like(tree: NestedJTensor) -> NestedJTensor:
  """Returns NaN in place of all floating-point values."""

  def fill(x: Array) -> Array:
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    return jnp.full_like(x, jnp.nan) if is_float else x

  return jax.tree.map(fill, tree)


def _expand(x: Bool[Array, ' S'], rank: int) -> Bool[Array, 'S ...']:
  return x.reshape(-1, *[1] * (rank - 1))
