# SPDX-License-Identifier: Apache-2.0
"""The mask of packed segments, as segment ids instead of a [T, T] array."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from praxis.layers.attentions import masks


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['segment_ids'],
  meta_fields=['is_causal', 'dtype', 'is_packed'],
)
@dataclasses.dataclass(frozen=True)
class SegmentMask:
  """Hides other segments, and later positions if it is causal.

  Attention kernels that need no mask in memory read the segment ids; functions
  of jnp take the object as its additive mask. It is a pytree, so that loops and
  pipelines slice the ids like other inputs.
  """

  # B is 1 if all examples have the same segments.
  segment_ids: Int[Array, 'B T']
  is_causal: bool
  # Dtype of the additive mask.
  dtype: np.dtype
  # Whether a row may have several segments. Else it is one segment, whose id is
  # positive, and then padding.
  is_packed: bool = True

  @property
  def shape(self) -> tuple[int, int, int, int]:
    batch, length = self.segment_ids.shape
    return batch, 1, length, length

  @property
  def ndim(self) -> int:
    return 4

  def for_batch(self, batch: int) -> SegmentMask:
    """Returns the mask with the segments of every example of a batch.

    Args:
      batch: number of examples; they may share one row of segments.
    """
    shape = batch, self.segment_ids.shape[1]
    ids = jnp.broadcast_to(self.segment_ids, shape)
    return dataclasses.replace(self, segment_ids=ids)

  def in_chunks(self, positions: Int[Array, '#B T'], size: int) -> SegmentMask:
    """Returns the causal mask in which chunks of segments are segments.

    Args:
      positions: of each element in its segment.
      size: number of positions of a chunk.
    """
    shape = jnp.broadcast_shapes(positions.shape, self.segment_ids.shape)
    ids = jnp.broadcast_to(self.segment_ids, shape)
    is_first = (positions % size == 0).at[:, 0].set(True)
    is_first |= jnp.diff(ids, axis=1, prepend=ids[:, :1]) != 0
    chunk_ids = jnp.cumsum(is_first, axis=1, dtype=ids.dtype)
    return dataclasses.replace(
      self,
      segment_ids=jnp.where(ids > 0, chunk_ids, ids),
      is_causal=True,
      is_packed=True,
    )

  def additive(self) -> Float[Array, 'B 1 T T']:
    """Returns the mask as floats; see masks.py."""
    if self.is_causal:
      return masks.causal_segment_mask(self.segment_ids, self.dtype)
    return masks.segment_mask(self.segment_ids, dtype=self.dtype)

  def __jax_array__(self) -> Float[Array, 'B 1 T T']:
    return self.additive()


def additive(
  mask: Shaped[Array, '#B #N #T S'] | SegmentMask,
) -> Shaped[Array, '#B #N #T S']:
  """Returns a mask as an array."""
  return mask.additive() if isinstance(mask, SegmentMask) else mask
