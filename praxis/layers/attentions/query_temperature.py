# SPDX-License-Identifier: Apache-2.0
"""A temperature of attention that grows with the position of the query."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer


class QueryTemperature(base_layer.BaseLayer):
  """Multiplies queries by 1 + α log(1 + ⌊(p + b) / F⌋) at position p.

  Without it, the softmax over more keys is flatter.

  References: Scalable-Softmax, https://arxiv.org/abs/2501.19399; Llama 4,
  Ministral 3
  """

  # α.
  log_scale: float = 0.1
  # F, the number of positions with the same factor.
  interval: int = 8192
  # b: 1 in Llama 4, 0 in Ministral 3.
  offset: int = 1

  def setup(self) -> None:
    if self.interval < 1:
      raise ValueError(
        f'interval must be a number of positions, at least 1, got'
        f' {self.interval}; set log_scale=0.0 for the factor 1'
      )

  def __call__(
    self,
    query: Float[Array, 'B T N H'],
    position: Int[Array, '#B T'] | None = None,
  ) -> Float[Array, 'B T N H']:
    """Returns the scaled queries.

    Args:
      query: not yet scaled.
      position: of each query in its segment; its index when None.
    """
    if position is None:
      position = jnp.arange(query.shape[1])[jnp.newaxis]
    intervals = ((position + self.offset) // self.interval).astype(jnp.float32)
    factor = 1.0 + self.log_scale * jnp.log1p(intervals)
    scaled = query * factor[:, :, jnp.newaxis, jnp.newaxis]
    return scaled.astype(query.dtype)
