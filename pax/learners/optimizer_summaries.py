# SPDX-License-Identifier: Apache-2.0
"""Summaries of optimizer states."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from praxis import base_layer, optimizers, py_utils


def add_aggregate(name: str, value: jax.Array) -> None:
  """Records a scalar that is a statistic of the whole batch."""
  base_layer.add_global_summary(
    name, value, base_layer.SummaryType.AGGREGATE_SCALAR
  )


def add_learning_rate(
  name: str, optimizer: optimizers.Optimizer, step: ArrayLike
) -> None:
  """Records the learning rate of the update to which the batch contributes.

  Args:
    name: Of the summary.
    optimizer: The optimizer; the schedule of one that accumulates gradients
      counts its updates.
    step: Number of previous batches.
  """
  if isinstance(optimizer, optimizers.ShardedStaticAccumulator):
    step = jnp.asarray(step) // optimizer.num_sub_batches
  add_aggregate(name, optimizer.get_learning_rate(step))


def add_skipped_steps(step: ArrayLike, states: Any) -> None:
  """Records how many steps were skipped up to and including `step`.

  The optimizer's own step count, which checkpoints hold, does not advance in a
  skipped step; the difference to `step` is the number of skipped steps.
  """
  counts = [
    x
    for path, x in py_utils.tree_paths(states)
    if path.split('/')[-1] == 'count'
  ]
  if counts:
    # All counts are equal; stacked layers have one count per layer.
    num_updates = jnp.ravel(counts[0])[0].astype(jnp.float32)
    skipped = jnp.asarray(step, jnp.float32) + 1.0 - num_updates
    add_aggregate('learning/skipped_steps', skipped)


def add_summaries_of_transformations(states: Any) -> None:
  """Records the maximum of each array under a `summaries` key of the states."""
  for path, x in py_utils.tree_paths(states):
    _, is_summary, name = f'/{path}'.partition('/summaries/')
    if is_summary:
      base_layer.add_global_summary(name, jnp.max(x))
