# SPDX-License-Identifier: Apache-2.0
"""Attention masks: additive floats, 0 = visible, about -2.4e38 = hidden.

Axes are batch, head, query position, key position; an axis of length 1 is
broadcast. Masks combine by minimum, so that two of them hide what either does
and never overflow.
"""

from __future__ import annotations

import jax
import jax.typing
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num, Shaped


def large_negative(dtype: jax.typing.DTypeLike) -> Float[Array, '']:
  """Returns the value that stands for "hidden": -0.7 of the largest number."""
  return jnp.asarray(-0.7 * jnp.finfo(dtype).max, dtype)


def causal_mask(
  input_t: Shaped[Array, 'B T ...'],
) -> Float[Array, '1 1 T T']:
  """Returns the mask that hides every later position.

  Args:
    input_t: only its length and dtype are used; integers give a float32 mask.
  """
  dtype = _mask_dtype(input_t.dtype)
  row, col = _rows_and_columns(input_t.shape[1])
  return hide(row < col, dtype)[jnp.newaxis, jnp.newaxis]


def segment_mask(
  segment_ids: Num[Array, 'B T'],
  source_segment_ids: Num[Array, 'B S'] | None = None,
  dtype: jax.typing.DTypeLike = jnp.float32,
) -> Float[Array, 'B 1 T S']:
  """Returns the mask that hides the positions of other segments.

  Args:
    segment_ids: the segment of each query position.
    source_segment_ids: the segment of each key position; the queries' own when
      absent.
    dtype: of the mask.
  """
  if source_segment_ids is None:
    source_segment_ids = segment_ids
  other = segment_ids[:, :, jnp.newaxis] != source_segment_ids[:, jnp.newaxis]
  return hide(other, dtype)[:, jnp.newaxis]


def causal_segment_mask(
  segment_ids: Num[Array, 'B T'],
  dtype: jax.typing.DTypeLike = jnp.float32,
  causal_attention_mask: Num[Array, 'B T'] | None = None,
) -> Float[Array, 'B 1 T T']:
  """Returns the mask that hides later positions and other segments.

  Args:
    segment_ids: the segment of each position.
    dtype: of the mask.
    causal_attention_mask: 1 where a position is seen only by later ones, 0
      where the whole segment sees it (the prefix of a prefix-LM); 1 everywhere
      when absent.
  """
  row, col = _rows_and_columns(segment_ids.shape[1])
  later = (row < col)[jnp.newaxis]
  if causal_attention_mask is not None:
    later = later & (causal_attention_mask[:, jnp.newaxis, :] > 0.5)
  other = segment_ids[:, :, jnp.newaxis] != segment_ids[:, jnp.newaxis, :]
  return hide(later | other, dtype)[:, jnp.newaxis]


def convert_paddings_to_mask(
  paddings: Num[Array, 'B T'],
  dtype: jax.typing.DTypeLike = jnp.float32,
) -> Float[Array, 'B 1 1 T']:
  """Returns the mask that hides padded positions (padding 1) from everyone."""
  return hide(paddings > 0.5, dtype)[:, jnp.newaxis, jnp.newaxis]


def limited_context_mask(
  left_context: int | None,
  right_context: int | None,
  time_size: int,
  dtype: jax.typing.DTypeLike = jnp.float32,
  column_time_size: int | None = None,
  first_row: Int[Array, ''] | int = 0,
) -> Float[Array, 'T S']:
  """Returns the mask that leaves a window around each position visible.

  Args:
    left_context: how many positions are visible up to and including the
      current one; all when absent.
    right_context: how many positions are visible after the current one; all
      when absent.
    time_size: number of query positions.
    dtype: of the mask.
    column_time_size: number of key positions; time_size when absent.
    first_row: position of the first query.
  """
  row, col = _rows_and_columns(time_size, column_time_size)
  row += first_row
  hidden = jnp.zeros(row.shape, jnp.bool_)
  if left_context is not None:
    hidden |= row - left_context >= col
  if right_context is not None:
    hidden |= col > row + right_context
  return hide(hidden, dtype)


def merge_masks(
  a: Float[Array, '#B 1 #T S'], b: Float[Array, '#B 1 #T S']
) -> Float[Array, 'B 1 T S']:
  """Returns the mask that hides what either mask hides.

  A key mask of shape [B, 1, 1, T] beside a mask with a query axis of the same
  length T hides the padded queries' rows too.

  Raises:
    ValueError: a mask is not of rank 4.
  """
  _check_rank(a, 'a')
  _check_rank(b, 'b')
  return jnp.minimum(_with_query_rows(a, b), _with_query_rows(b, a))


def apply_mask(
  logits: Float[Array, '*B S'], mask: Float[Array, '*#B #S']
) -> Float[Array, '*B S']:
  """Returns the logits, hidden ones replaced by a large negative number.

  A logit stays what it was where the mask is above half the "hidden" value, so
  masks may be added up and may come in another dtype than the logits.
  """
  hidden = large_negative(logits.dtype)
  visible = mask.astype(logits.dtype) >= hidden * 0.5
  return jnp.where(visible, logits, hidden)


def is_hidden(mask: Float[Array, '*B']) -> Bool[Array, '*B']:
  """Returns True where the mask hides."""
  return mask < large_negative(mask.dtype) * 0.5


def hide(
  hidden: Bool[Array, '*B'], dtype: jax.typing.DTypeLike
) -> Float[Array, '*B']:
  """Returns the mask that is large negative where `hidden` is true."""
  return jnp.where(hidden, large_negative(dtype), jnp.zeros((), dtype))


def _rows_and_columns(
  rows: int, columns: int | None = None
) -> tuple[Int[Array, 'T S'], Int[Array, 'T S']]:
  shape = (rows, rows if columns is None else columns)
  return (
    jax.lax.broadcasted_iota(jnp.int32, shape, 0),
    jax.lax.broadcasted_iota(jnp.int32, shape, 1),
  )


def _mask_dtype(dtype: jax.typing.DTypeLike) -> jax.typing.DTypeLike:
  return dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.float32


def _with_query_rows(mask: Array, other: Array) -> Array:
  """Hides the rows of hidden keys as well, when `other` has as many rows."""
  is_key_mask = mask.shape[2] == 1 and mask.shape[3] != 1
  if is_key_mask and other.shape[2] == mask.shape[3]:
    return jnp.minimum(mask, jnp.swapaxes(mask, 2, 3))
  return mask


def _check_rank(mask: Array, name: str) -> None:
  if mask.ndim != 4:
    raise ValueError(
      f'mask {name} must have shape [batch or 1, 1, T or 1, S], got '
      f'{list(mask.shape)}; pass paddings through convert_paddings_to_mask'
      ' and segment ids through segment_mask'
    )
