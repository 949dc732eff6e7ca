# SPDX-License-Identifier: Apache-2.0
"""Splitting of a batch, and of a stage's other arguments, into microbatches."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

_TreeT = TypeVar('_TreeT')


def count_microbatches(
  batch_size: int, num_microbatches: int | None, microbatch_size: int | None
) -> int:
  """Returns the number of microbatches, from their number or their size.

  Raises:
    ValueError: not exactly one of the two is set, or it does not divide the
      batch size.
  """
  settings = {
    'num_microbatches': num_microbatches,
    'microbatch_size': microbatch_size,
  }
  given = [(name, n) for name, n in settings.items() if n is not None]
  if len(given) != 1:
    raise ValueError(
      'exactly one of num_microbatches and microbatch_size must be set, got '
      f'{num_microbatches} and {microbatch_size}'
    )
  [(name, divisor)] = given
  if divisor < 1 or batch_size % divisor:
    raise ValueError(
      f'{name} must divide the batch size {batch_size}, got {divisor}; change '
      'it or PERCORE_BATCH_SIZE'
    )
  return batch_size // divisor if num_microbatches is None else divisor


def split_batch(
  tree: _TreeT, num_microbatches: int, num_streams: int = 1
) -> _TreeT:
  """Reshapes [B, ...] to [microbatches, B / microbatches, ...].

  Microbatch i has the examples i, i + num_microbatches, ..., so that it has the
  sharding of the batch. With several streams this holds within each stream, a
  contiguous part of the batch with consecutive microbatches.
  """

  def split(x: Array) -> Array:
    size = x.shape[0] // num_microbatches
    x = x.reshape(num_streams, size, -1, *x.shape[1:])
    return jnp.swapaxes(x, 1, 2).reshape(num_microbatches, size, *x.shape[3:])

  return jax.tree.map(split, tree)


def join_batch(tree: _TreeT, num_streams: int = 1) -> _TreeT:
  """Inverts `split_batch`."""

  def join(x: Array) -> Array:
    x = x.reshape(num_streams, -1, *x.shape[1:])
    return jnp.swapaxes(x, 1, 2).reshape(-1, *x.shape[3:])

  return jax.tree.map(join, tree)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BroadcastInputs:
  """The arguments of a stage after the first, split into microbatches."""

  # Arguments with a leading batch axis, [microbatches, B / microbatches, ...].
  batched: list[Array]
  # All arguments in flattened order, with None in place of the batched ones.
  unbatched: list[Array | None]
  treedef: jax.tree_util.PyTreeDef

  @classmethod
  def split(
    cls,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    num_microbatches: int,
    batch_size: int | None,
    num_streams: int = 1,
  ) -> BroadcastInputs:
    """Splits positional and keyword arguments.

    Args:
      args: positional arguments; arrays with a leading axis of `batch_size` are
        split.
      kwargs: keyword arguments, likewise.
      num_microbatches: number of microbatches.
      batch_size: size of the batch; None: the arguments are split already.
      num_streams: see `split_batch`.
    """
    leaves, treedef = jax.tree.flatten((args, kwargs))
    size = num_microbatches if batch_size is None else batch_size
    is_batched = [x.ndim > 0 and x.shape[0] == size for x in leaves]
    batched = [x for x, yes in zip(leaves, is_batched, strict=True) if yes]
    if batch_size is not None:
      batched = split_batch(batched, num_microbatches, num_streams)
    return cls(
      batched=batched,
      unbatched=[
        None if yes else x for x, yes in zip(leaves, is_batched, strict=True)
      ],
      treedef=treedef,
    )

  def gather(self, microbatches: Int[Array, ' S']) -> list[Array]:
    """Returns the batched arguments of each stage's microbatch, [S, ...]."""
    return [x[microbatches] for x in self.batched]

  def join(
    self, batched: list[Array]
  ) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns args and kwargs for one microbatch's batched arguments."""
    remaining = iter(batched)
    leaves = [next(remaining) if x is None else x for x in self.unbatched]
    return jax.tree.unflatten(self.treedef, leaves)
