# SPDX-License-Identifier: Apache-2.0
"""Blockwise controlled decoding: best-of-K selection every few steps.

After each block of steps, the best of K adjacent samples replaces the other
K - 1. A sample's score is its log-probability so far, or `prefix_scores` of the
loop's state, where a token sampler may keep the values of a reward model.

References: Controlled Decoding from Language Models,
https://arxiv.org/abs/2310.17022
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from praxis.decoding import (
  decode_loop,
  model_fns,
  sample_results,
  state_transforms,
)
from praxis.decoding.hparams import ControlledDecodingHParams
from praxis.nested_map import NestedMap


@dataclasses.dataclass(frozen=True)
class BlockSchedule:
  """When blocks end, and how many samples compete then."""

  # Numbers of decode steps, ascending.
  ends: Sequence[int]
  # Number of adjacent samples to select the best from.
  num_candidates: int
  # Whether caches have room for one block only and grow with each.
  has_growing_caches: bool

  @classmethod
  def from_hparams(
    cls,
    control: ControlledDecodingHParams,
    num_samples: int,
    buckets: Sequence[int],
  ) -> BlockSchedule:
    """Returns the schedule of blocks.

    Args:
      control: the settings.
      num_samples: number of samples of each prompt.
      buckets: max_decode_steps; blocks end there if `control.interval` is 0.

    Raises:
      ValueError: blocks do not divide num_samples or max_decode_steps.
    """
    num_candidates = control.block_num_samples
    if num_candidates < 1 or num_samples % num_candidates:
      raise ValueError(
        'block_num_samples must be > 0 and divide num_samples='
        f'{num_samples}, got {num_candidates}'
      )
    interval = control.interval
    if not interval:
      return cls(buckets, num_candidates, has_growing_caches=True)
    if len(buckets) > 1 or buckets[0] % interval:
      raise ValueError(
        'max_decode_steps must be one number, a multiple of '
        f'controlled_decoding.interval={interval}, got {list(buckets)}'
      )
    ends = range(interval, buckets[0] + 1, interval)
    return cls(ends, num_candidates, has_growing_caches=False)


def run_blocks(
  model: Any,
  fns: model_fns.ModelFns,
  body: decode_loop.Body,
  state: NestedMap,
  schedule: BlockSchedule,
  should_stop: decode_loop.StopFn | None = None,
) -> NestedMap:
  """Runs the decode loop block by block, selecting samples in between.

  Args:
    model: bound, with a mutable DECODE_CACHE.
    fns: the functions of the model; with lazy_broadcast_prefix the samples
      have their own axis in the decode states.
    body: fn(model, state) -> state.
    state: the initial state.
    schedule: the blocks.
    should_stop: fn(state) that ends a block early.

  Returns:
    The final state.
  """
  ends, num_candidates = schedule.ends, schedule.num_candidates
  first_step = state.step
  for i, end in enumerate(ends):
    if i > 0:
      state, winners = _select_best(state, num_candidates)
      num_steps = end - ends[i - 1]
      if fns.lazy_broadcast_prefix is not None:
        fns.transform(model, _take_winners_fn(winners, num_candidates))
        fns.lazy_broadcast_prefix(model, num_candidates, num_steps)
      else:
        fns.transform(model, state_transforms.take_rows_fn(winners))
        if schedule.has_growing_caches:
          fns.transform(model, state_transforms.pad_state_fn(num_steps))
    state = decode_loop.run(model, body, state, first_step + end, should_stop)
  return state


def _select_best(
  state: NestedMap, num_candidates: int
) -> tuple[NestedMap, Int[Array, ' R']]:
  """Returns the state of the best samples, and the source row of each row."""
  scores = state.get(
    'prefix_scores', sample_results.sample_scores(state.logprobs)
  )
  best = jnp.argmax(scores.reshape(-1, num_candidates), axis=1)
  rows = jnp.arange(best.shape[0]) * num_candidates + best
  winners = jnp.repeat(rows, num_candidates)
  num_rows = scores.shape[0]

  def take_winners(x: Array) -> Array:
    has_rows = x.ndim > 0 and x.shape[0] == num_rows
    return x[winners] if has_rows else x

  return jax.tree.map(take_winners, jax.tree.map(jnp.asarray, state)), winners


def _take_winners_fn(
  winners: Int[Array, ' R'], num_candidates: int
) -> state_transforms.StateTransform:
  """Keeps one sample of each block.

  The sample axis precedes time; states without time have a row per sample.
  """
  kept = winners[::num_candidates]

  def take(x: Array, batch_dim: int, time_dim: int) -> Array:
    if batch_dim < 0:
      return x
    if time_dim < 0:
      return jnp.take(x, kept, axis=batch_dim)
    rows = jnp.take(x.reshape(-1, *x.shape[time_dim:]), kept, axis=0)
    num_samples = x.shape[time_dim - 1] // num_candidates
    return rows.reshape(
      *x.shape[: time_dim - 1], num_samples, *x.shape[time_dim:]
    )

  return take
