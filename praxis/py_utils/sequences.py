# SPDX-License-Identifier: Apache-2.0
"""Padded batches of sequences of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped

Lengths = Int[Array, '...'] | Sequence[int]


def sequence_mask(
  lengths: Lengths, maxlen: int, dtype: Any = jnp.bool_
) -> Shaped[Array, '... maxlen']:
  """Returns 1 for the first `lengths` of `maxlen` positions, then 0."""
  return (jnp.arange(maxlen) < jnp.asarray(lengths)[..., None]).astype(dtype)


def sequence_paddings(
  lengths: Lengths, maxlen: int, dtype: Any = jnp.float32
) -> Shaped[Array, '... maxlen']:
  """Returns 0 for the first `lengths` of `maxlen` positions, then 1."""
  return (jnp.arange(maxlen) >= jnp.asarray(lengths)[..., None]).astype(dtype)


def sequence_lengths(paddings: Shaped[Array, 'B T']) -> Int[Array, ' B']:
  """Returns the number of positions of each row that are not padding.

  The sum is that of integers: in bfloat16 it is rounded from 257 on.
  """
  return jnp.sum(1 - paddings.astype(jnp.int32), axis=1)


def apply_padding(
  inputs: Shaped[Array, '...'],
  padding: Shaped[Array, '...'],
  pad_value: Shaped[Array, '...'] | float | None = None,
  use_select: bool = True,
  axis: int | None = None,
) -> Shaped[Array, '...']:
  """Returns `inputs` with `pad_value` (or 0) where `padding` is 1.

  Args:
    inputs: the array to pad.
    padding: 1 at padded positions; broadcasts against `inputs`.
    pad_value: the value of padded positions; None: 0.
    use_select: whether to use `where`; products with the mask otherwise, which
      keep NaNs.
    axis: from this axis on `padding` may lack trailing dimensions, or have
      more dimensions of size 1 than `inputs`.
  """
  if axis is not None:
    head, tail = padding.shape[:axis], padding.shape[axis:]
    rank = len(inputs.shape[axis:])
    ones = (1,) * max(rank - len(tail), 0)
    padding = padding.reshape(*head, *tail[:rank], *ones)
  if use_select:
    value = jnp.asarray(0 if pad_value is None else pad_value, inputs.dtype)
    return jnp.where(padding > 0, value, inputs)
  padding = padding.astype(inputs.dtype)
  padded = inputs * (1 - padding)
  return padded if pad_value is None else padded + pad_value * padding


@jax.vmap
def flip_sequence(
  inputs: Shaped[Array, 'T ...'], lengths: Shaped[Array, '']
) -> Shaped[Array, 'T ...']:
  """Returns [B, T, ...] with the first `lengths` [B] positions reversed."""
  length = lengths.astype(jnp.int32)
  order = (length - 1 - jnp.arange(len(inputs))) % len(inputs)
  return inputs[order]


def concat_sequences_with_padding(
  input0: Shaped[Array, 'B T0 ...'],
  paddings0: Shaped[Array, 'B T0'],
  input1: Shaped[Array, 'B T1 ...'],
  paddings1: Shaped[Array, 'B T1'],
) -> tuple[Shaped[Array, 'B T ...'], Shaped[Array, 'B T']]:
  """Concatenates the sequences of two batches pairwise, without gaps.

  Returns:
    The sequences and their paddings. Padded positions follow the sequence:
    those of `input1` first, then those of `input0`.

  Raises:
    ValueError: the inputs differ after batch and time.
  """
  if input0.shape[2:] != input1.shape[2:]:
    raise ValueError(
      'input0 and input1 must have one shape after batch and time, got shapes '
      f'{input0.shape} and {input1.shape}'
    )
  length0, length1 = (
    sequence_lengths(paddings)[:, None] for paddings in (paddings0, paddings1)
  )
  time0, time1 = paddings0.shape[1], paddings1.shape[1]
  position = jnp.arange(time0 + time1)
  source = jnp.where(
    position < length0,
    position,
    jnp.where(
      position < length0 + time1,
      position - length0 + time0,
      position - time1,
    ),
  )
  inputs = jnp.concatenate([input0, input1], axis=1)
  outputs = jax.vmap(lambda x, indices: x[indices])(inputs, source)
  return outputs, (position >= length0 + length1).astype(paddings0.dtype)


def append_eos(
  x: Int[Array, 'B T'],
  paddings: Shaped[Array, 'B T'],
  eos_id: int,
  extend_if_overflow: bool = True,
) -> tuple[Int[Array, 'B S'], Shaped[Array, 'B S']]:
  """Appends `eos_id` to the sequences that do not end with it.

  Args:
    x: token ids.
    paddings: 1 at padded positions.
    eos_id: the id to append; padded positions of the result hold it too.
    extend_if_overflow: whether to add a position to all sequences if one is
      full; otherwise full sequences stay unchanged. Must be False under `jit`.

  Returns:
    The sequences and their paddings.
  """
  time = x.shape[1]
  lengths = sequence_lengths(paddings)
  last = jnp.take_along_axis(x, jnp.maximum(lengths - 1, 0)[:, None], axis=1)
  is_ended = (lengths > 0) & (last[:, 0] == eos_id)
  ends = lengths + ~is_ended
  if extend_if_overflow and bool(jnp.any(ends > time)):
    x = jnp.pad(x, [(0, 0), (0, 1)])
    time += 1
  outputs = jnp.where(sequence_mask(lengths, time), x, eos_id)
  return outputs, sequence_paddings(ends, time, paddings.dtype)
