# SPDX-License-Identifier: Apache-2.0
"""Blockwise controlled decoding: the best of a few samples goes on as all.

A sample's score is its log-probability so far, or `prefix_scores` if the
sampler keeps such in the loop's state, the value of a reward model for example.

References: Controlled Decoding from Language Models,
https://arxiv.org/abs/2310.17022
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from praxis.decoding import loop, sample_results, states
from praxis.nested_map import NestedMap


def run(
  model: Any,
  plan: Any,
  state: NestedMap,
  is_over: Callable[[NestedMap], Array] | None,
) -> NestedMap:
  """Returns the last state of a loop of blocks; `plan` is that of sampling."""
  control = plan.options.controlled_decoding
  size, num_samples = control.block_num_samples, plan.texts.num_samples
  if size < 1 or num_samples % size:
    raise ValueError(
      'block_num_samples must be > 0 and divide num_samples='
      f'{num_samples}, got {size}'
    )
  buckets = list(plan.buckets)
  if control.interval:
    if len(buckets) > 1 or buckets[0] % control.interval:
      raise ValueError(
        'max_decode_steps must be one number, a multiple of '
        f'controlled_decoding.interval={control.interval}, got {buckets}'
      )
    buckets = list(range(control.interval, buckets[0] + 1, control.interval))
  is_lazy = plan.steps.lazy_broadcast_prefix is not None and num_samples > 1
  first = state.step
  for i, bucket in enumerate(buckets):
    if i > 0:
      state, winners = _take_best(state, size)
      grown = bucket - buckets[i - 1]
      if is_lazy:
        plan.steps.transform(model, _keep_fn(winners, size))
        plan.steps.lazy_broadcast_prefix(model, size, grown)
      else:
        plan.steps.transform(model, states.take_rows_fn(winners))
        if not control.interval:
          plan.steps.transform(model, states.pad_state_fn(grown))
    state = loop.run(model, plan, state, first + bucket, is_over)
  return state


def _take_best(
  state: NestedMap, size: int
) -> tuple[NestedMap, Int[Array, 'R']]:
  """Returns the state of the best samples, and which row each is of."""
  scores = state.get(
    'prefix_scores', sample_results.sample_scores(state.logprobs)
  )
  best = jnp.argmax(scores.reshape(-1, size), axis=1)
  rows = jnp.arange(best.shape[0]) * size + best
  winners = jnp.repeat(rows, size)
  count = scores.shape[0]
  by_row = lambda x: x.ndim > 0 and x.shape[0] == count
  taken = jax.tree.map(
    lambda x: x[winners] if by_row(x) else x, jax.tree.map(jnp.asarray, state)
  )
  return taken, winners


def _keep_fn(winners: Int[Array, 'R'], size: int) -> states.StateFn:
  """Keeps one row of each block; samples have the axis before time."""

  def keep(x: Array, batch_dim: int, time_dim: int) -> Array:
    if batch_dim < 0 or time_dim < 0:
      return x
    flat = x.reshape(-1, *x.shape[time_dim:])
    kept = jnp.take(flat, winners[::size], axis=0)
    samples = x.shape[time_dim - 1] // size
    return kept.reshape(*x.shape[: time_dim - 1], samples, *x.shape[time_dim:])

  return keep
