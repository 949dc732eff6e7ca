# SPDX-License-Identifier: Apache-2.0
"""Which text of its row a token belongs to, and where it stands in that."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Int, Num


def or_one_per_row(
  paddings: Num[Array, 'B T'],
  ids: Int[Array, 'B T'] | None,
  pos: Int[Array, 'B T'] | None,
) -> tuple[Int[Array, 'B T'], Int[Array, 'B T']]:
  """Returns ids and positions; where absent, those of one text per row."""
  if ids is None:
    ids = (1 - paddings).astype(jnp.int32)
  if pos is None:
    pos = jnp.arange(paddings.shape[1], dtype=jnp.int32)
    pos = jnp.broadcast_to(pos, paddings.shape)
  return ids, pos
