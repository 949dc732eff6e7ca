# SPDX-License-Identifier: Apache-2.0
"""Segment means: router inputs that send a whole segment to one expert."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num


def segment_means(
  inputs: Float[Array, 'B T D'],
  paddings: Num[Array, 'B T'] | None,
  segment_ids: Int[Array, 'B T'] | None,
) -> Float[Array, 'B T D']:
  """Returns, for each position, the mean of the inputs over its segment.

  Args:
    inputs: the values to average.
    paddings: 1 for padding. Without `segment_ids` the unpadded positions of a
      row are one segment.
    segment_ids: numbered from 1; 0 is padding, whose mean is 0.
  """
  if segment_ids is None:
    segment_ids = jnp.ones(inputs.shape[:2], jnp.int32)
    if paddings is not None:
      segment_ids = (1 - paddings).astype(jnp.int32)

  def row_means(x: Array, ids: Array) -> Array:
    # A row of T positions has at most T segments, and the padding.
    num_segments = x.shape[0] + 1
    total = jax.ops.segment_sum(x, ids, num_segments=num_segments)
    count = jax.ops.segment_sum(
      jnp.ones_like(ids), ids, num_segments=num_segments
    )
    mean = total / jnp.maximum(count, 1)[:, jnp.newaxis].astype(x.dtype)
    return jnp.where(ids[:, jnp.newaxis] > 0, mean[ids], 0.0)

  return jax.vmap(row_means)(inputs, segment_ids)
