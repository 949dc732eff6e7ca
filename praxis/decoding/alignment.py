# SPDX-License-Identifier: Apache-2.0
"""Moves the texts of a batch to the left or right end of their rows."""

from __future__ import annotations

import jax.numpy as jnp
import jax.typing
from jaxtyping import Array, Float, Int, Num, Shaped


def shift_rows(
  x: Shaped[Array, 'B ...'],
  offsets: Int[Array, 'B'],
  axis: int = 1,
  fill: float = 0,
) -> Shaped[Array, 'B ...']:
  """Returns each row moved by its offset to the right; `fill` comes in."""
  column = jnp.arange(x.shape[axis])
  source = column[jnp.newaxis] - offsets[:, jnp.newaxis]
  inside = (source >= 0) & (source < x.shape[axis])
  shape = [1] * x.ndim
  shape[0], shape[axis] = source.shape
  source = jnp.clip(source, 0, x.shape[axis] - 1)
  moved = jnp.take_along_axis(x, source.reshape(shape), axis=axis)
  return jnp.where(inside.reshape(shape), moved, jnp.asarray(fill, x.dtype))


def right_align_tensors(
  x: Shaped[Array, 'B ...'], lengths: Int[Array, 'B'], align_dim: int = 1
) -> Shaped[Array, 'B ...']:
  """Returns rows whose first `lengths` elements stand at the end, 0 before."""
  if not 0 < align_dim < x.ndim:
    raise ValueError(
      f'align_dim must be in [1, {x.ndim}), the dimensions of x after its '
      f'batch, got {align_dim}'
    )
  return shift_rows(x, x.shape[align_dim] - lengths, align_dim)


def left_align_tensor(
  x: Shaped[Array, 'B T'],
  prefix_lengths: Int[Array, 'B'],
  max_prefix_len: int,
  pad_value: float = 0.0,
) -> Shaped[Array, 'B T']:
  """Returns rows moved to the left by the padding before their prefix.

  Prefixes end at column `max_prefix_len`; `pad_value` comes in at the right.
  """
  return shift_rows(x, prefix_lengths - max_prefix_len, fill=pad_value)


def left_align_kv_cache(
  x: Shaped[Array, 'B T *D'],
  prefix_lengths: Int[Array, 'B'],
  max_prefix_len: int,
  pad_value: float = 0.0,
  batch_size: int = 1,
) -> Shaped[Array, 'B T *D']:
  """Does what `left_align_tensor` does to a cache of `batch_size` rows."""
  if x.ndim not in (3, 4) or x.shape[0] != batch_size:
    raise ValueError(
      f'x must have shape [{batch_size}, time, heads, size] or [{batch_size}, '
      f'time, size], got {list(x.shape)}'
    )
  return shift_rows(x, prefix_lengths - max_prefix_len, fill=pad_value)


def right_align_segment_position(
  lengths: Int[Array, 'B'], max_length: int
) -> Int[Array, 'B T']:
  """Returns the positions of right-aligned texts, 0 in the padding before."""
  position = jnp.arange(max_length) - (max_length - lengths)[:, jnp.newaxis]
  return jnp.maximum(position, 0)


def right_align_prefix_ids(
  prefix_ids: Int[Array, 'B T'],
  prefix_lengths: Int[Array, 'B'],
  paddings_dtype: jax.typing.DTypeLike,
) -> tuple[Int[Array, 'B T'], Num[Array, 'B T']]:
  """Returns right-aligned texts and their paddings."""
  length = prefix_ids.shape[1]
  is_padding = jnp.arange(length) < (length - prefix_lengths)[:, jnp.newaxis]
  ids = right_align_tensors(prefix_ids, prefix_lengths)
  return ids, is_padding.astype(paddings_dtype)


def concat_suffix_and_left_align(
  decoded_tensors: Num[Array, 'R T'],
  suffix_tensors: Num[Array, 'X L'],
  decode_end_indices: Int[Array, 'R'],
  prefix_lengths: Int[Array, 'R'],
  max_prefix_len: int,
  **counts: int | float,
) -> Num[Array, 'B S N K']:
  """Returns left-aligned rows that go on with suffixes where decoding ended.

  Args:
    decoded_tensors: rows of B * N samples, prefixes ending at max_prefix_len.
    suffix_tensors: S suffixes for each of those rows, one after the other.
    decode_end_indices: the column after the last that was decoded.
    prefix_lengths: of the rows.
    max_prefix_len: number of columns of the prefixes.
    **counts: `num_samples` (N), `num_suffix` (S), and `pad_value`, which comes
      in at the right.
  """
  num_samples, num_suffix = counts['num_samples'], counts['num_suffix']
  pad_value = counts['pad_value']
  repeat = lambda x: jnp.repeat(x, num_suffix, axis=0)
  added = suffix_tensors.shape[1]
  joined = jnp.pad(
    repeat(decoded_tensors),
    [(0, 0), (0, added)],
    constant_values=jnp.asarray(pad_value, decoded_tensors.dtype),
  )
  ends = repeat(decode_end_indices)
  suffix = shift_rows(
    jnp.pad(suffix_tensors, [(0, 0), (0, joined.shape[1] - added)]), ends
  )
  column = jnp.arange(joined.shape[1])[jnp.newaxis] - ends[:, jnp.newaxis]
  joined = jnp.where((column >= 0) & (column < added), suffix, joined)
  aligned = left_align_tensor(
    joined, repeat(prefix_lengths), max_prefix_len, pad_value
  )
  aligned = aligned.reshape(-1, num_samples, num_suffix, aligned.shape[1])
  return jnp.moveaxis(aligned, 2, 1)


def lengths_of(paddings: Float[Array, 'B T']) -> Int[Array, 'B']:
  """Returns how many tokens of each row are no padding."""
  return jnp.sum(1 - paddings.astype(jnp.int32), axis=1)
