# SPDX-License-Identifier: Apache-2.0
"""The further arguments of a pipeline's stages, split into microbatches."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from praxis.layers.pipeline import schedule


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineArguments:
  """Arguments of which some have the batch in front and others do not."""

  # Those with the batch in front, [microbatches, B / microbatches, ...].
  leaves: list[jax.Array]
  # All arguments in order, None where one of `leaves` belongs.
  constants: list[Any]
  structure: Any

  @classmethod
  def split(
    cls,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    batch: int,
    num_microbatches: int,
  ) -> PipelineArguments:
    """Returns the arguments, those of the batch split into microbatches."""
    flat, structure = jax.tree.flatten((args, kwargs))
    is_split = [x.ndim > 0 and x.shape[0] == batch for x in flat]
    leaves = [x for x, yes in zip(flat, is_split, strict=True) if yes]
    return cls(
      leaves=schedule.split_batch(leaves, num_microbatches),
      constants=[
        None if yes else x for x, yes in zip(flat, is_split, strict=True)
      ],
      structure=structure,
    )

  def of_microbatches(self, indices: jax.Array) -> list[jax.Array]:
    """Returns [stages, ...] for the microbatch of each stage."""
    return [leaf[indices] for leaf in self.leaves]

  def join(
    self, leaves: list[jax.Array]
  ) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns args and kwargs with one microbatch's leaves in them."""
    rest = iter(leaves)
    flat = [next(rest) if x is None else x for x in self.constants]
    return jax.tree.unflatten(self.structure, flat)
