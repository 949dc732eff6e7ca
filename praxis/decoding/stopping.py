# SPDX-License-Identifier: Apache-2.0
"""Whether a text has come to its end."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

# One id, several, or a stop sequence for each example: [B, L], or several of
# them, [B, S, L]. Shorter sequences have zeros at the left.
EosId = int | Sequence[int] | Array


def has_any_eos(
  arr: Int[Array, '*B'], eos_ids: int | Sequence[int]
) -> Bool[Array, '*B']:
  """Returns where ids are one of `eos_ids`."""
  return jnp.isin(arr, jnp.asarray(eos_ids, jnp.int32))


def end_with_sequences(
  stop_sequences: Int[Array, 'B L'],
  output_ids: Int[Array, 'B T'],
  decode_step: Int[Array, ''] | int,
) -> Bool[Array, 'B']:
  """Returns which rows have their stop sequence end at `decode_step`."""
  column = jnp.full([output_ids.shape[0], 1], decode_step)
  return end_with_any_sequence_any_position(
    stop_sequences[:, jnp.newaxis], output_ids, column
  )[:, 0, 0]


def end_with_any_sequence_any_position(
  stop_sequence: Int[Array, 'B S L'],
  output_ids: Int[Array, 'B T'],
  decode_step: Int[Array, 'B P'],
) -> Bool[Array, 'B P S']:
  """Returns whether each stop sequence ends at each of the given columns.

  Zeros match everything, since they pad sequences at the left; a sequence of
  nothing else never matches.
  """
  length = stop_sequence.shape[-1]
  column = decode_step[..., jnp.newaxis] + jnp.arange(1 - length, 1)
  flat = column.reshape(column.shape[0], -1)
  last = jnp.take_along_axis(output_ids, jnp.maximum(flat, 0), axis=1)
  last = jnp.where(flat >= 0, last, 0).reshape(column.shape)
  wanted = stop_sequence[:, jnp.newaxis]
  equal = (last[:, :, jnp.newaxis] == wanted) | (wanted == 0)
  return jnp.all(equal, axis=-1) & jnp.any(wanted != 0, axis=-1)


def find_first_new_stop_seq_match(
  first_new_decode_idx: Int[Array, 'B'],
  num_new_tokens: int,
  stop_sequences: Int[Array, 'B S L'],
  sequences: Int[Array, 'B T'],
) -> Int[Array, 'B']:
  """Returns after how many new tokens a stop sequence first ends.

  The count starts with 0 at column `first_new_decode_idx`; it is
  num_new_tokens where none of them ends a sequence.
  """
  columns = first_new_decode_idx[:, jnp.newaxis] + jnp.arange(num_new_tokens)
  matches = end_with_any_sequence_any_position(
    stop_sequences, sequences, columns
  )
  is_end = jnp.any(matches, axis=-1)
  found = jnp.argmax(is_end, axis=1)
  return jnp.where(jnp.any(is_end, axis=1), found, num_new_tokens)


def is_end(
  eos_id: EosId,
  new_ids: Int[Array, 'R'],
  output_ids: Int[Array, 'R T'],
  column: Int[Array, ''],
) -> Bool[Array, 'R']:
  """Returns which texts end with their new id, that at `column`."""
  if not hasattr(eos_id, 'ndim') or eos_id.ndim < 2:
    return has_any_eos(new_ids, eos_id)
  sequences = eos_id.reshape(eos_id.shape[0], -1, eos_id.shape[-1])
  columns = jnp.broadcast_to(column, [new_ids.shape[0], 1])
  return end_with_any_sequence_any_position(sequences, output_ids, columns).any(
    axis=(1, 2)
  )
