# SPDX-License-Identifier: Apache-2.0
"""Left and right alignment of the sequences of a padded batch."""

from __future__ import annotations

import jax.numpy as jnp
import jax.typing
from jaxtyping import Array, Int, Num, Shaped


def shift_rows(
  x: Shaped[Array, 'B ...'],
  offsets: Int[Array, ' B'],
  axis: int = 1,
  fill: float = 0,
) -> Shaped[Array, 'B ...']:
  """Returns each row shifted right by its offset along `axis`.

  Args:
    x: the rows.
    offsets: a negative offset shifts left.
    axis: the axis along which rows are shifted.
    fill: the value of vacated positions.
  """
  position = jnp.arange(x.shape[axis])
  source = position[jnp.newaxis] - offsets[:, jnp.newaxis]
  in_bounds = (source >= 0) & (source < x.shape[axis])
  shape = [1] * x.ndim
  shape[0], shape[axis] = source.shape
  source = jnp.clip(source, 0, x.shape[axis] - 1)
  shifted = jnp.take_along_axis(x, source.reshape(shape), axis=axis)
  fill_value = jnp.asarray(fill, x.dtype)
  return jnp.where(in_bounds.reshape(shape), shifted, fill_value)


def right_align_tensors(
  x: Shaped[Array, 'B ...'], lengths: Int[Array, ' B'], align_dim: int = 1
) -> Shaped[Array, 'B ...']:
  """Moves the first `lengths` elements of each row to its end, after zeros.

  Raises:
    ValueError: align_dim is the batch dimension or out of range.
  """
  if not 0 < align_dim < x.ndim:
    raise ValueError(
      f'align_dim must be in [1, {x.ndim}), the dimensions of x after its '
      f'batch, got {align_dim}'
    )
  return shift_rows(x, x.shape[align_dim] - lengths, align_dim)


def left_align_tensor(
  x: Shaped[Array, 'B T'],
  prefix_lengths: Int[Array, ' B'],
  max_prefix_len: int,
  pad_value: float = 0.0,
) -> Shaped[Array, 'B T']:
  """Returns left-aligned rows whose right-aligned prefixes were left-padded.

  Args:
    x: rows; the prefixes end at column `max_prefix_len`.
    prefix_lengths: number of tokens of each prefix.
    max_prefix_len: number of columns of the prefixes.
    pad_value: the value of vacated columns.
  """
  return shift_rows(x, prefix_lengths - max_prefix_len, fill=pad_value)


def left_align_kv_cache(
  x: Shaped[Array, 'B T *D'],
  prefix_lengths: Int[Array, ' B'],
  max_prefix_len: int,
  pad_value: float = 0.0,
  batch_size: int = 1,
) -> Shaped[Array, 'B T *D']:
  """Returns a left-aligned cache; see `left_align_tensor`.

  Args:
    x: a cache [batch, time, heads, head_dim] or [batch, time, dim].
    prefix_lengths: number of tokens of each prefix.
    max_prefix_len: number of columns of the prefixes.
    pad_value: the value of vacated time steps.
    batch_size: the number of rows of x.

  Raises:
    ValueError: x has another rank or another number of rows.
  """
  if x.ndim not in (3, 4) or x.shape[0] != batch_size:
    raise ValueError(
      f'x must have shape [{batch_size}, time, heads, size] or [{batch_size}, '
      f'time, size], got {list(x.shape)}'
    )
  return shift_rows(x, prefix_lengths - max_prefix_len, fill=pad_value)


def right_align_segment_position(
  lengths: Int[Array, ' B'], max_length: int
) -> Int[Array, 'B T']:
  """Returns positions of right-aligned sequences, 0 in the left padding."""
  position = jnp.arange(max_length) - (max_length - lengths)[:, jnp.newaxis]
  return jnp.maximum(position, 0)


def right_align_prefix_ids(
  prefix_ids: Int[Array, 'B T'],
  prefix_lengths: Int[Array, ' B'],
  paddings_dtype: jax.typing.DTypeLike,
) -> tuple[Int[Array, 'B T'], Num[Array, 'B T']]:
  """Returns right-aligned prefixes and their paddings."""
  length = prefix_ids.shape[1]
  is_padding = jnp.arange(length) < (length - prefix_lengths)[:, jnp.newaxis]
  ids = right_align_tensors(prefix_ids, prefix_lengths)
  return ids, is_padding.astype(paddings_dtype)


def concat_suffix_and_left_align(
  decoded_tensors: Num[Array, 'R T'],
  suffix_tensors: Num[Array, 'X L'],
  decode_end_indices: Int[Array, ' R'],
  prefix_lengths: Int[Array, ' R'],
  max_prefix_len: int,
  num_samples: int,
  num_suffix: int,
  pad_value: float,
) -> Num[Array, 'B S N K']:
  """Returns left-aligned rows of decoded samples followed by suffixes.

  Args:
    decoded_tensors: rows of B * num_samples samples, whose right-aligned
      prefixes end at column `max_prefix_len`.
    suffix_tensors: num_suffix suffixes of each of those rows, adjacent.
    decode_end_indices: the column after the last decoded one.
    prefix_lengths: number of tokens of each row's prefix.
    max_prefix_len: number of columns of the prefixes.
    num_samples: N.
    num_suffix: S.
    pad_value: the value of vacated columns.
  """
  repeat = lambda x: jnp.repeat(x, num_suffix, axis=0)
  suffix_len = suffix_tensors.shape[1]
  rows = jnp.pad(
    repeat(decoded_tensors),
    [(0, 0), (0, suffix_len)],
    constant_values=jnp.asarray(pad_value, decoded_tensors.dtype),
  )
  ends = repeat(decode_end_indices)
  suffix = shift_rows(
    jnp.pad(suffix_tensors, [(0, 0), (0, rows.shape[1] - suffix_len)]), ends
  )
  position = jnp.arange(rows.shape[1])[jnp.newaxis] - ends[:, jnp.newaxis]
  is_suffix = (position >= 0) & (position < suffix_len)
  aligned = left_align_tensor(
    jnp.where(is_suffix, suffix, rows),
    repeat(prefix_lengths),
    max_prefix_len,
    pad_value,
  )
  aligned = aligned.reshape(-1, num_samples, num_suffix, aligned.shape[1])
  return jnp.moveaxis(aligned, 2, 1)
