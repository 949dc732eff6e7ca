# SPDX-License-Identifier: Apache-2.0
"""Which keys a device's queries may see, wherever the keys come from.

Shapes: B batch, T queries here, S all keys, C keys of some device.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from praxis.layers.attentions import masks


class Sight(NamedTuple):
  """Either a mask, or runs of keys that end at their query.

  The runs take the place of a mask of T x S where sequences are long.
  """

  # Index of each query in the sequence.
  index: Int[Array, 'T']
  # Index of the first key that each query sees; it sees all from there on up
  # to its own.
  first: Int[Array, '#B T'] | None = None
  # Additive, of these queries and all keys; see attentions.masks.
  mask: Float[Array, '#B #T S'] | None = None

  def hidden(self, columns: Int[Array, 'C']) -> Bool[Array, '#B #T C']:
    """Returns which keys at these (neighbouring) indices are hidden."""
    if self.mask is not None:
      part = jax.lax.dynamic_slice_in_dim(
        self.mask, columns[0], columns.shape[0], axis=-1
      )
      return masks.is_hidden(part)
    after = columns > self.index[:, jnp.newaxis]
    return after | (columns < self.first[:, :, jnp.newaxis])

  def rows(self, rows: slice) -> Sight:
    """Returns what some of the queries see."""
    mask = self.mask
    if mask is not None and mask.shape[1] > 1:
      mask = mask[:, rows]
    first = None if self.first is None else self.first[:, rows]
    return Sight(index=self.index[rows], first=first, mask=mask)
