# SPDX-License-Identifier: Apache-2.0
"""What is done to the decode states of a model, tensor by tensor.

Each function here returns an fn(x, batch_dim, time_dim) for the model's
`transform_decode_state`; a dimension that x lacks is -1.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from praxis.decoding import alignment

StateFn = Callable[[Array, int, int], Array]


def pad_state_fn(state_padding_size: int) -> StateFn:
  """Makes room for so many more steps."""

  def pad(x: Array, batch_dim: int, time_dim: int) -> Array:
    del batch_dim
    if time_dim < 0:
      return x
    widths = [(0, 0)] * x.ndim
    widths[time_dim] = (0, state_padding_size)
    return jnp.pad(x, widths)

  return pad


def slice_state_fn(slice_start: int, slice_limit: int) -> StateFn:
  """Keeps the steps [slice_start, slice_limit); negative: from the end."""

  def cut(x: Array, batch_dim: int, time_dim: int) -> Array:
    del batch_dim
    if time_dim < 0:
      return x
    start, limit, _ = slice(slice_start, slice_limit).indices(x.shape[time_dim])
    return jax.lax.slice_in_dim(x, start, limit, axis=time_dim)

  return cut


def batch_broadcast_state_fn(multiplier: int) -> StateFn:
  """Repeats each row so many times, one after the other."""

  def repeat(x: Array, batch_dim: int, time_dim: int) -> Array:
    del time_dim
    return x if batch_dim < 0 else jnp.repeat(x, multiplier, axis=batch_dim)

  return repeat


def right_align_state_fn(seq_lengths: Int[Array, 'B']) -> StateFn:
  """Moves the first `seq_lengths` steps of each row to the end."""

  def align(x: Array, batch_dim: int, time_dim: int) -> Array:
    del batch_dim
    if time_dim < 0:
      return x
    return alignment.right_align_tensors(x, seq_lengths, time_dim)

  return align


def take_rows_fn(index: Int[Array, 'R'], *, num_axes: int = 1) -> StateFn:
  """Replaces row i by row index[i].

  Args:
    index: for each row, where what belongs to it stands.
    num_axes: over how many axes, from the batch on, rows are spread; more
      than one where samples have an axis of their own.
  """

  def take(x: Array, batch_dim: int, time_dim: int) -> Array:
    del time_dim
    if batch_dim < 0:
      return x
    end = batch_dim + num_axes
    flat = x.reshape(*x.shape[:batch_dim], -1, *x.shape[end:])
    return jnp.take(flat, index, axis=batch_dim).reshape(x.shape)

  return take
