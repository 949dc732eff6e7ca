# SPDX-License-Identifier: Apache-2.0
"""Matching of end-of-sequence ids and stop sequences."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

# One id, several ids, or a stop sequence for each example: [B, L], or several
# of them, [B, S, L], left-padded with 0.
EosId = int | Sequence[int] | Array


def as_list(ids: int | Sequence[int]) -> list[int]:
  """Returns one id, or several, as a list."""
  return list(ids) if isinstance(ids, Sequence) else [ids]


def has_any_eos(
  arr: Int[Array, '*B'], eos_ids: int | Sequence[int] | Int[Array, '*E']
) -> Bool[Array, '*B']:
  """Returns the mask of the ids that are one of `eos_ids`."""
  return jnp.isin(arr, jnp.asarray(eos_ids, jnp.int32))


def end_with_sequences(
  stop_sequences: Int[Array, 'B L'],
  output_ids: Int[Array, 'B T'],
  decode_step: Int[Array, ''] | int,
) -> Bool[Array, ' B']:
  """Returns the rows whose stop sequence ends at column `decode_step`."""
  column = jnp.full([output_ids.shape[0], 1], decode_step)
  return end_with_any_sequence_any_position(
    stop_sequences[:, jnp.newaxis], output_ids, column
  )[:, 0, 0]


def end_with_any_sequence_any_position(
  stop_sequence: Int[Array, 'B S L'],
  output_ids: Int[Array, 'B T'],
  decode_step: Int[Array, 'B P'],
) -> Bool[Array, 'B P S']:
  """Returns whether each stop sequence ends at each column `decode_step`.

  Zeros are left padding and match any id; an all-zero sequence never matches.
  """
  length = stop_sequence.shape[-1]
  columns = decode_step[..., jnp.newaxis] + jnp.arange(1 - length, 1)
  flat = columns.reshape(columns.shape[0], -1)
  suffixes = jnp.take_along_axis(output_ids, jnp.maximum(flat, 0), axis=1)
  suffixes = jnp.where(flat >= 0, suffixes, 0).reshape(columns.shape)
  patterns = stop_sequence[:, jnp.newaxis]
  equal = (suffixes[:, :, jnp.newaxis] == patterns) | (patterns == 0)
  return jnp.all(equal, axis=-1) & jnp.any(patterns != 0, axis=-1)


def find_first_new_stop_seq_match(
  first_new_decode_idx: Int[Array, ' B'],
  num_new_tokens: int,
  stop_sequences: Int[Array, 'B S L'],
  sequences: Int[Array, 'B T'],
) -> Int[Array, ' B']:
  """Returns the offset of the first column where a stop sequence ends.

  Args:
    first_new_decode_idx: the column of each row's first new token, offset 0.
    num_new_tokens: number of columns to search.
    stop_sequences: left-padded with 0.
    sequences: the ids.

  Returns:
    The offsets, num_new_tokens for a row without a match.
  """
  columns = first_new_decode_idx[:, jnp.newaxis] + jnp.arange(num_new_tokens)
  matches = end_with_any_sequence_any_position(
    stop_sequences, sequences, columns
  )
  is_end = jnp.any(matches, axis=-1)
  first_match = jnp.argmax(is_end, axis=1)
  return jnp.where(jnp.any(is_end, axis=1), first_match, num_new_tokens)


def is_end(
  eos_id: EosId,
  new_ids: Int[Array, ' R'],
  output_ids: Int[Array, 'R T'],
  column: Int[Array, ''],
) -> Bool[Array, ' R']:
  """Returns the rows that end at `column`.

  Args:
    eos_id: ids, or stop sequences of each row.
    new_ids: output_ids[:, column].
    output_ids: the rows so far.
    column: the column of the new ids.
  """
  if np.ndim(eos_id) < 2:
    return has_any_eos(new_ids, eos_id)
  sequences = jnp.asarray(eos_id)
  sequences = sequences.reshape(sequences.shape[0], -1, sequences.shape[-1])
  columns = jnp.broadcast_to(column, [new_ids.shape[0], 1])
  matches = end_with_any_sequence_any_position(sequences, output_ids, columns)
  return matches.any(axis=(1, 2))
