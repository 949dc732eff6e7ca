# SPDX-License-Identifier: Apache-2.0
"""A pipeline that every microbatch passes several times."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from praxis import pytypes
from praxis.layers.pipeline import layerwise_shardable, stage_buffers
from praxis.layers.pipeline import schedule as schedule_lib

Schedule = schedule_lib.Schedule


class CircularLayerwiseShardablePipelined(
  layerwise_shardable.LayerwiseShardablePipelined
):
  """A pipeline whose stages hold circular_repeat groups of layers each.

  The bubble is that of one pass, however many passes there are. Weights have
  two leading axes, [circular_repeat, num_stages].
  """

  # How often every microbatch passes all the stages.
  circular_repeat: int = 1
  # Whether all passes use the same weights, [num_stages] in front.
  share_weights: bool = False
  # Whether what comes out of the last stage has an iteration more for its way
  # to the first, which hides the way; needs more microbatches than stages.
  enable_async_circular_transfer: bool = True

  def _num_repeats(self) -> int:
    return self.circular_repeat

  def _has_weights_per_repeat(self) -> bool:
    return not self.share_weights

  def _keeps_inputs(self) -> bool:
    return True

  def _first_carry(self, schedule: Schedule, flow: Any) -> dict[str, Any]:
    """Adds slots, where microbatches wait for the first stage."""
    carry = super()._first_carry(schedule, flow)
    slots = stage_buffers.first_stage_only(flow, schedule.num_stages)
    carry['slots'] = self._shard(slots)
    if self._sends_ahead(schedule):
      carry['in_flight'] = carry['state']
    return carry

  def _take_first(
    self, schedule: Schedule, carry: dict[str, Any], xs: Any
  ) -> tuple[dict[str, Any], Any]:
    t, count = xs['t'], schedule.num_microbatches
    carry = self._store_arriving(schedule, carry, t)
    first = stage_buffers.read_slot(carry['slots'], t % count)
    if self.stream_io:
      _, fresh = super()._take_first(schedule, carry, xs)
      first = jax.tree.map(
        lambda new, old: jnp.where(t < count, new, old), fresh, first
      )
    return carry, first

  def _outputs(self, schedule: Schedule, carry: dict[str, Any], ys: Any) -> Any:
    if self.stream_io:
      return super()._outputs(schedule, carry, ys)
    end = jnp.asarray(schedule.num_valid_iterations)
    slots = carry['slots']
    if self._sends_ahead(schedule):
      slots = _store(slots, schedule, end - 2, carry['in_flight'])
    last = stage_buffers.rotate(carry['state'], 1)
    slots = _store(slots, schedule, end - 1, last)
    return jax.tree.map(lambda x: x[0], slots)

  def _store_arriving(
    self, schedule: Schedule, carry: dict[str, Any], t: pytypes.JTensor
  ) -> dict[str, Any]:
    """Files what came out of the last stage under its microbatch.

    That is of the iteration before, or when it is sent ahead, of that before.
    """
    carry = dict(carry)
    arriving = stage_buffers.rotate(carry['state'], 1)
    delay = schedule.num_stages
    if self._sends_ahead(schedule):
      arriving, carry['in_flight'] = carry['in_flight'], arriving
      delay += 1
    carry['slots'] = _store(carry['slots'], schedule, t - delay, arriving)
    return carry

  def _sends_ahead(self, schedule: Schedule) -> bool:
    return (
      self.enable_async_circular_transfer
      and schedule.num_microbatches > schedule.num_stages
    )


def _store(
  slots: Any, schedule: Schedule, position: pytypes.JTensor, values: Any
) -> Any:
  """Writes the values of a position, if that is not before the beginning."""
  slot = position % schedule.num_microbatches
  kept = stage_buffers.read_slot(slots, slot)
  values = jax.tree.map(
    lambda new, old: jnp.where(position >= 0, new, old), values, kept
  )
  return stage_buffers.write_slot(slots, slot, values)
