# SPDX-License-Identifier: Apache-2.0
"""Attention masks: additive floats, 0 = visible, about -2.4e38 = masked.

Axes are batch, head, query position, key position; an axis of length 1 is
broadcast. Masks combine by minimum, which masks what either of them masks and
cannot overflow.

Shapes: B batch, T queries, S keys, L steps of a decoding step.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.typing
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num, Shaped


def large_negative(dtype: jax.typing.DTypeLike) -> Float[Array, '']:
  """Returns the masked value of a dtype, -0.7 of its largest number."""
  return jnp.asarray(-0.7 * jnp.finfo(dtype).max, dtype)


def additive_mask(
  is_masked: Bool[Array, '*B'], dtype: jax.typing.DTypeLike
) -> Float[Array, '*B']:
  """Returns the mask that is large negative where `is_masked`, else 0."""
  return jnp.where(is_masked, large_negative(dtype), jnp.zeros((), dtype))


def is_masked(mask: Float[Array, '*B']) -> Bool[Array, '*B']:
  """Returns True where the mask is below half the masked value."""
  return mask < large_negative(mask.dtype) * 0.5


def apply_mask(
  logits: Float[Array, '*B S'], mask: Float[Array, '*#B #S']
) -> Float[Array, '*B S']:
  """Returns the logits with masked ones replaced by a large negative number.

  A logit is unchanged where the mask is at least half the masked value, so
  masks may be sums of masks and of another dtype than the logits.
  """
  masked_value = large_negative(logits.dtype)
  visible = mask.astype(logits.dtype) >= masked_value * 0.5
  return jnp.where(visible, logits, masked_value)


def causal_mask(
  input_t: Shaped[Array, 'B T ...'],
) -> Float[Array, '1 1 T T']:
  """Returns the mask that hides later positions.

  Args:
    input_t: gives the length and the dtype; integers give a float32 mask.
  """
  dtype = _mask_dtype(input_t.dtype)
  row, col = _rows_and_columns(input_t.shape[1])
  return additive_mask(row < col, dtype)[jnp.newaxis, jnp.newaxis]


def segment_mask(
  segment_ids: Num[Array, 'B T'],
  source_segment_ids: Num[Array, 'B S'] | None = None,
  dtype: jax.typing.DTypeLike = jnp.float32,
) -> Float[Array, 'B 1 T S']:
  """Returns the mask that hides other segments.

  Args:
    segment_ids: the segment of each query.
    source_segment_ids: the segment of each key; that of the queries when None.
    dtype: of the mask.
  """
  if source_segment_ids is None:
    source_segment_ids = segment_ids
  differs = segment_ids[:, :, jnp.newaxis] != source_segment_ids[:, jnp.newaxis]
  return additive_mask(differs, dtype)[:, jnp.newaxis]


def causal_segment_mask(
  segment_ids: Num[Array, 'B T'],
  dtype: jax.typing.DTypeLike = jnp.float32,
  causal_attention_mask: Num[Array, 'B T'] | None = None,
) -> Float[Array, 'B 1 T T']:
  """Returns the mask that hides later positions and other segments.

  Args:
    segment_ids: the segment of each position.
    dtype: of the mask.
    causal_attention_mask: 1 for positions that only later ones see, 0 for those
      that their whole segment sees (the prefix of a prefix LM); 1 everywhere
      when None.
  """
  row, col = _rows_and_columns(segment_ids.shape[1])
  is_later = (row < col)[jnp.newaxis]
  if causal_attention_mask is not None:
    is_later = is_later & (causal_attention_mask[:, jnp.newaxis, :] > 0.5)
  differs = segment_ids[:, :, jnp.newaxis] != segment_ids[:, jnp.newaxis, :]
  return additive_mask(is_later | differs, dtype)[:, jnp.newaxis]


def convert_paddings_to_mask(
  paddings: Num[Array, 'B T'],
  dtype: jax.typing.DTypeLike = jnp.float32,
) -> Float[Array, 'B 1 1 T']:
  """Returns the mask that hides padded keys (padding 1)."""
  return additive_mask(paddings > 0.5, dtype)[:, jnp.newaxis, jnp.newaxis]


def limited_context_mask(
  left_context: int | None,
  right_context: int | None,
  time_size: int,
  dtype: jax.typing.DTypeLike = jnp.float32,
  column_time_size: int | None = None,
  first_row: Int[Array, ''] | int = 0,
) -> Float[Array, 'T S']:
  """Returns the mask that shows a window around each position.

  Args:
    left_context: number of visible positions up to and including the query's
      own; unlimited when None.
    right_context: number of visible positions after the query's own; unlimited
      when None.
    time_size: number of queries.
    dtype: of the mask.
    column_time_size: number of keys; time_size when None.
    first_row: position of the first query.
  """
  row, col = _rows_and_columns(time_size, column_time_size)
  row += first_row
  outside = jnp.zeros(row.shape, jnp.bool_)
  if left_context is not None:
    outside |= row - left_context >= col
  if right_context is not None:
    outside |= col > row + right_context
  return additive_mask(outside, dtype)


def merge_masks(
  a: Float[Array, '#B 1 #T S'], b: Float[Array, '#B 1 #T S']
) -> Float[Array, 'B 1 T S']:
  """Returns the mask that hides what either mask hides.

  A padding mask [B, 1, 1, T] merged with a mask of T queries also masks the
  rows of the padded queries.

  Raises:
    ValueError: a mask is not of rank 4.
  """
  _check_rank(a, 'a')
  _check_rank(b, 'b')
  return jnp.minimum(_with_query_rows(a, b), _with_query_rows(b, a))


def step_positions(
  segment_pos: Int[Array, '#B *L'] | None,
  time_step: Int[Array, ''] | int,
  num_steps: int,
) -> Int[Array, '#B L']:
  """Returns the position in its segment of each of several decoding steps.

  Args:
    segment_pos: of each step, or of the first; the index of the step when None.
    time_step: index of the first step.
    num_steps: number of steps.
  """
  if segment_pos is None:
    return (time_step + jnp.arange(num_steps))[jnp.newaxis]
  if segment_pos.ndim == 1:
    return segment_pos[:, jnp.newaxis] + jnp.arange(num_steps)
  return segment_pos


def segment_step_mask(
  time_step: Int[Array, ''] | int,
  seq_len: int,
  segment_pos: Int[Array, 'B L'],
) -> Float[Array, 'B 1 L S']:
  """Returns the causal mask of L decoding steps within their segments.

  Step i has cache index time_step + i, and its segment starts segment_pos
  entries earlier. The step before an empty prompt, at position -1, is a segment
  of its own.

  Args:
    time_step: index of the first step.
    seq_len: number of steps in the cache.
    segment_pos: position of each step in its segment.
  """
  key = jnp.arange(seq_len)
  query = time_step + jnp.arange(segment_pos.shape[1])
  segment_start = (query - jnp.maximum(segment_pos, 0))[:, :, jnp.newaxis]
  outside = (key > query[:, jnp.newaxis]) | (key < segment_start)
  return additive_mask(outside, jnp.float32)[:, jnp.newaxis]


def chunk_step_mask(
  time_step: Int[Array, ''] | int,
  seq_len: int,
  segment_pos: Int[Array, 'B L'],
  chunk_size: int,
) -> Float[Array, 'B 1 L S']:
  """Returns the causal mask of L steps within the chunks of their segments.

  Args:
    time_step: index of the first step.
    seq_len: number of steps in the cache.
    segment_pos: position of each step in its segment; see `segment_step_mask`.
    chunk_size: number of positions of a chunk.
  """
  pos_in_chunk = jnp.maximum(segment_pos, 0) % chunk_size
  return segment_step_mask(time_step, seq_len, pos_in_chunk)


def expand_step_mask(
  mask: Shaped[Array, '...'], batch: int
) -> Shaped[Array, '#B N L S']:
  """Returns a mask of decoding steps with an axis of steps, for all samples.

  Args:
    mask: [C or 1, N or 1, S] for one step, or [C or 1, N or 1, L, S].
    batch: number of samples; each example has batch / C of them in a row.
  """
  if mask.ndim == 3:
    mask = mask[:, :, jnp.newaxis]
  num_examples = mask.shape[0]
  if 1 < num_examples < batch and batch % num_examples == 0:
    mask = jnp.repeat(mask, batch // num_examples, axis=0)
  return mask


@dataclasses.dataclass(frozen=True)
class ContextWindow:
  """The window of keys around the position of each query."""

  # Number of keys up to and including the query's own; unlimited when None.
  left: int | None
  # Number of keys after the query's own; unlimited when None.
  right: int | None

  def mask(
    self,
    num_queries: int,
    num_keys: int,
    first_query: Int[Array, ''] | int,
    dtype: jax.typing.DTypeLike,
  ) -> Float[Array, 'T S']:
    """Returns the additive mask.

    Args:
      num_queries: number of consecutive queries.
      num_keys: number of keys.
      first_query: index of the first query among the keys.
      dtype: of the mask.
    """
    return limited_context_mask(
      self.left, self.right, num_queries, dtype, num_keys, first_query
    )

  def key_span(
    self, first_query: Int[Array, ''] | int, num_queries: int, num_keys: int
  ) -> tuple[Int[Array, ''] | int, int]:
    """Returns the start and the static size of the span of visible keys.

    A span that reaches beyond an end of the keys is moved inside.

    Args:
      first_query: index of the first query among the keys.
      num_queries: number of consecutive queries.
      num_keys: number of keys.
    """
    if self.left is None or self.right is None:
      return 0, num_keys
    size = min(num_keys, self.left + self.right + num_queries - 1)
    start = first_query - self.left + 1
    if isinstance(start, int):
      return min(max(start, 0), num_keys - size), size
    return jnp.clip(start, 0, num_keys - size), size


def context_window(
  left_context: int | None, right_context: int | None
) -> ContextWindow | None:
  """Returns the window of the contexts, or None if neither is limited."""
  if left_context is None and right_context is None:
    return None
  return ContextWindow(left_context, right_context)


def slice_span(
  x: Shaped[Array, '...'], span: tuple[Array | int, int], axis: int
) -> Shaped[Array, '...']:
  """Returns the (start, size) span of an axis, or an axis of length 1 whole."""
  start, size = span
  if x.shape[axis] == 1 or x.shape[axis] == size:
    return x
  if isinstance(start, int):
    return jax.lax.slice_in_dim(x, start, start + size, axis=axis)
  return jax.lax.dynamic_slice_in_dim(x, start, size, axis)


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
  """Masks the rows of masked keys too if `other` has a row for each key."""
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
