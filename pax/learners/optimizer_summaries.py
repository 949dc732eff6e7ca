# SPDX-License-Identifier: Apache-2.0
"""What the state of an optimizer tells about a run."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike

from praxis import base_layer, py_utils


def skipped_steps(step: ArrayLike, states: Any) -> None:
  """Records how many steps were skipped so far, this one, `step`, included.

  A skipped step leaves the optimizer's own count as it is, which is part of its
  state and so outlives a restart: what the count lacks was skipped.
  """
  counts = [
    x
    for path, x in py_utils.tree_paths(states)
    if path.split('/')[-1] == 'count'
  ]
  if counts:
    # All count alike; those of stacked layers once for each.
    done = jnp.ravel(counts[0])[0].astype(jnp.float32)
    skipped = jnp.asarray(step, jnp.float32) + 1.0 - done
    base_layer.add_global_summary('learning/skipped_steps', skipped)


def optimizer_summaries(states: Any) -> None:
  """Records what transformations keep in their states under `summaries`.

  Of an array it is the largest value.
  """
  for path, x in py_utils.tree_paths(states):
    _, found, name = f'/{path}'.partition('/summaries/')
    if found:
      base_layer.add_global_summary(name, jnp.max(x))
