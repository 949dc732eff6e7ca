# SPDX-License-Identifier: Apache-2.0
"""Sentences in the place of tokens, so that all of one go to one expert."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num


def means(
  inputs: Float[Array, 'B T D'],
  paddings: Num[Array, 'B T'] | None,
  segment_ids: Int[Array, 'B T'] | None,
) -> Float[Array, 'B T D']:
  """Returns, for each position, the mean of its segment.

  Args:
    inputs: what is averaged.
    paddings: 1 where the inputs are padding; then a row is one segment.
    segment_ids: from 1 on; 0 is padding, whose mean is 0.
  """
  if segment_ids is None:
    segment_ids = jnp.ones(inputs.shape[:2], jnp.int32)
    if paddings is not None:
      segment_ids = (1 - paddings).astype(jnp.int32)

  def of_row(x: Array, ids: Array) -> Array:
    # A row of T positions has at most T segments.
    size = x.shape[0] + 1
    total = jax.ops.segment_sum(x, ids, num_segments=size)
    count = jax.ops.segment_sum(jnp.ones_like(ids), ids, num_segments=size)
    mean = total / jnp.maximum(count, 1)[:, jnp.newaxis].astype(x.dtype)
    return mean.at[0].set(0.0)[ids]

  return jax.vmap(of_row)(inputs, segment_ids)
