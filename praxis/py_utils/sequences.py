# SPDX-License-Identifier: Apache-2.0
"""Batches of sequences of different lengths, padded to one."""

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


def apply_padding(
  inputs: Shaped[Array, '...'],
  padding: Shaped[Array, '...'],
  pad_value: Shaped[Array, '...'] | float | None = None,
  use_select: bool = True,
  axis: int | None = None,
) -> Shaped[Array, '...']:
  """Returns `inputs`, but `pad_value` (or 0) where `padding` is 1.

  Args:
    inputs: what is padded.
    padding: 1 where to pad; broadcasts against `inputs`.
    pad_value: what to pad with.
    use_select: whether by choice, or by products (where a nan would survive).
    axis: from here on `padding` may lack trailing dimensions, or have more of
      size 1 than `inputs`.
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
  """Returns each sequence of `input0` followed by that of `input1`, paddings.

  Paddings stand after the sequences; those of `input0` come last.
  """
  if input0.shape[2:] != input1.shape[2:]:
    raise ValueError(
      'input0 and input1 must be alike after batch and time, got shapes '
      f'{input0.shape} and {input1.shape}'
    )
  length0, length1 = (
    jnp.sum(1 - paddings, axis=1, keepdims=True).astype(jnp.int32)
    for paddings in (paddings0, paddings1)
  )
  time0, time1 = paddings0.shape[1], paddings1.shape[1]
  at = jnp.arange(time0 + time1)
  order = jnp.where(
    at < length0,
    at,
    jnp.where(at < length0 + time1, at - length0 + time0, at - time1),
  )
  both = jnp.concatenate([input0, input1], axis=1)
  joined = jax.vmap(lambda x, indices: x[indices])(both, order)
  return joined, (at >= length0 + length1).astype(paddings0.dtype)


def append_eos(
  x: Int[Array, 'B T'],
  paddings: Shaped[Array, 'B T'],
  eos_id: int,
  extend_if_overflow: bool = True,
) -> tuple[Int[Array, 'B S'], Shaped[Array, 'B S']]:
  """Returns sequences that end with `eos_id`, and their paddings.

  One that ends with it stays as it is; padded positions hold it too. If one has
  no room left, all get one more position, or it goes without
  (`extend_if_overflow` False, which `jit` needs).
  """
  time = x.shape[1]
  lengths = jnp.sum(1 - paddings, axis=1).astype(jnp.int32)
  last = jnp.take_along_axis(x, jnp.maximum(lengths - 1, 0)[:, None], axis=1)
  is_ended = (lengths > 0) & (last[:, 0] == eos_id)
  ends = lengths + ~is_ended
  if extend_if_overflow and bool(jnp.any(ends > time)):
    x = jnp.pad(x, [(0, 0), (0, 1)])
    time += 1
  outputs = jnp.where(sequence_mask(lengths, time), x, eos_id)
  return outputs, sequence_paddings(ends, time, paddings.dtype)
