# SPDX-License-Identifier: Apache-2.0
"""Visibility of keys for one device's queries, for keys of any device.

Shapes: B batch, T queries of this device, S all keys, C keys of some device.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from praxis.layers.attentions import masks


class KeyVisibility(NamedTuple):
  """A mask, or for each query the range of keys that ends at its own index.

  Ranges replace a mask of T x S for long sequences.
  """

  # Index of each query in the sequence.
  query_index: Int[Array, ' T']
  # Index of the first visible key of each query; later ones are visible up to
  # the query's own index. None: 0.
  first_key: Int[Array, '#B T'] | None = None
  # Additive, of these queries and all keys; see attentions.masks.
  mask: Float[Array, '#B #T S'] | None = None

  def is_masked(self, key_index: Int[Array, ' C']) -> Bool[Array, '#B #T C']:
    """Returns which keys, at consecutive indices, each query does not see."""
    if self.mask is not None:
      columns = jax.lax.dynamic_slice_in_dim(
        self.mask, key_index[0], key_index.shape[0], axis=-1
      )
      return masks.is_masked(columns)
    is_later = key_index > self.query_index[:, jnp.newaxis]
    if self.first_key is None:
      return is_later
    return is_later | (key_index < self.first_key[:, :, jnp.newaxis])

  def slice_queries(self, rows: slice) -> KeyVisibility:
    """Returns the visibility for some of the queries."""
    mask = self.mask
    if mask is not None and mask.shape[1] > 1:
      mask = mask[:, rows]
    first_key = None if self.first_key is None else self.first_key[:, rows]
    return KeyVisibility(self.query_index[rows], first_key, mask)
