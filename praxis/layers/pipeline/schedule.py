# SPDX-License-Identifier: Apache-2.0
"""The schedule of a (circular) GPipe pipeline: microbatch by stage and time.

At iteration t, stage s works on entry t - s of the sequence of microbatches,
which a circular pipeline repeats. Entries before the start and after the end
are bubbles.

References: GPipe, https://arxiv.org/abs/1811.06965; interleaved stages,
https://arxiv.org/abs/2104.04473, section 2.2.2.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
  """A pipeline schedule of S stages."""

  num_stages: int
  num_microbatches: int
  # Number of passes of each microbatch through all stages.
  repeats: int = 1

  @property
  def num_valid_iterations(self) -> int:
    """Number of iterations in which a stage has work."""
    return self.num_microbatches * self.repeats

  @property
  def num_iterations(self) -> int:
    """Number of iterations, bubbles included."""
    return self.num_valid_iterations + self.num_stages - 1

  def is_valid(self, t: Int[Array, '*T']) -> Bool[Array, '*T S']:
    """Returns whether each stage has work at iteration t."""
    entry = self._entry(t)
    return (entry >= 0) & (entry < self.num_valid_iterations)

  def microbatch(self, t: Int[Array, '*T']) -> Int[Array, '*T S']:
    """Returns the microbatch index of each stage; arbitrary in bubbles."""
    return self._entry(t) % self.num_microbatches

  def repeat(self, t: Int[Array, '*T']) -> Int[Array, '*T S']:
    """Returns the pass that each stage's microbatch is in."""
    repeat = self._entry(t) // self.num_microbatches
    return jnp.clip(repeat, 0, self.repeats - 1)

  def is_last(self, t: Int[Array, '*T'], repeat: bool) -> Bool[Array, '*T S']:
    """Returns whether a microbatch is the last of a pass, or of all passes.

    Args:
      t: iterations.
      repeat: whether the last microbatch of each pass counts.
    """
    length = self.num_microbatches if repeat else self.num_valid_iterations
    return self._entry(t) % length == length - 1

  def _entry(self, t: Int[Array, '*T']) -> Int[Array, '*T S']:
    return jnp.asarray(t)[..., jnp.newaxis] - jnp.arange(self.num_stages)
