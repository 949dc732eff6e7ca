# SPDX-License-Identifier: Apache-2.0
"""Transforms of a model's decode states, such as its KV caches.

Each function returns a fn(x, batch_dim, time_dim) for the model's
`transform_decode_state`; batch_dim or time_dim is -1 if x lacks it.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Int

from praxis.decoding import sequence_alignment

StateTransform = Callable[[Array, int, int], Array]


def pad_state_fn(state_padding_size: int) -> StateTransform:
  """Appends `state_padding_size` zeros to the time dimension."""

  def pad(x: Array, time_dim: int) -> Array:
    widths = [(0, 0)] * x.ndim
    widths[time_dim] = (0, state_padding_size)
    return jnp.pad(x, widths)

  return _over_time(pad)


def slice_state_fn(slice_start: int, slice_limit: int) -> StateTransform:
  """Keeps time steps [slice_start, slice_limit), as a Python slice does."""
  steps = slice(slice_start, slice_limit)
  return _over_time(lambda x, time_dim: x[(slice(None),) * time_dim + (steps,)])


def batch_broadcast_state_fn(multiplier: int) -> StateTransform:
  """Repeats each row `multiplier` times; copies are adjacent."""
  return _over_batch(
    lambda x, batch_dim: jnp.repeat(x, multiplier, axis=batch_dim)
  )


def right_align_state_fn(seq_lengths: Int[Array, ' B']) -> StateTransform:
  """Moves the first `seq_lengths` time steps of each row to its end."""
  return _over_time(
    lambda x, time_dim: sequence_alignment.right_align_tensors(
      x, seq_lengths, time_dim
    )
  )


def take_rows_fn(index: Int[Array, ' R']) -> StateTransform:
  """Replaces row i by row index[i]."""
  return _over_batch(lambda x, batch_dim: jnp.take(x, index, axis=batch_dim))


def _over_time(fn: Callable[[Array, int], Array]) -> StateTransform:
  """Applies fn(x, time_dim) to the states that have a time dimension."""

  def transform(x: Array, batch_dim: int, time_dim: int) -> Array:
    del batch_dim
    return x if time_dim < 0 else fn(x, time_dim)

  return transform


def _over_batch(fn: Callable[[Array, int], Array]) -> StateTransform:
  """Applies fn(x, batch_dim) to the states that have a batch dimension."""

  def transform(x: Array, batch_dim: int, time_dim: int) -> Array:
    del time_dim
    return x if batch_dim < 0 else fn(x, batch_dim)

  return transform
