# SPDX-License-Identifier: Apache-2.0
"""What stages report, averaged over the microbatches they worked on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from praxis.layers.pipeline import schedule as schedule_lib


def averaged(
  loop: Callable[..., Any],
  collections: list[str],
  schedule: schedule_lib.Schedule,
  unpack: bool,
) -> Callable[..., Any]:
  """Averages what a loop stores in `collections`, bubbles left out.

  Args:
    loop: stores values [iterations, stages, ...].
    collections: which ones.
    schedule: says what is a bubble.
    unpack: whether stage s of pass r goes under `layer_i` with
      i = r * stages + s, in place of one array for all i.
  """
  num_layers = schedule.num_stages * schedule.repeats

  def average(trees: Any) -> Any:
    means = jax.tree.map(lambda x: _mean_by_layer(x, schedule), trees)
    if not unpack:
      return means
    return {
      name: {
        f'layer_{i}': jax.tree.map(lambda x: x[i], tree)  # noqa: B023
        for i in range(num_layers)
      }
      for name, tree in means.items()
      if tree
    }

  return nn.map_variables(
    loop,
    collections,
    trans_in_fn=lambda trees: {name: {} for name in trees},
    trans_out_fn=average,
    mutable=True,
  )


def _mean_by_layer(
  values: jax.Array, schedule: schedule_lib.Schedule
) -> jax.Array:
  """Returns [layers, ...] of values [iterations, stages, ...]."""
  t = jnp.arange(schedule.num_iterations)
  valid, repeat = schedule.valid(t), schedule.repeat(t)
  columns = (..., *[jnp.newaxis] * (values.ndim - 2))
  means = [
    jnp.where((valid & (repeat == r))[columns], values, 0).sum(0)
    / schedule.num_microbatches
    for r in range(schedule.repeats)
  ]
  return jnp.concatenate(means)
