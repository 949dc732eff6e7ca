# SPDX-License-Identifier: Apache-2.0
"""Compression of each head to its Bregman PCA coefficients."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from praxis import pax_fiddle
from praxis.layers import bregman


class BregmanCompression(bregman.BregmanSettings):
  """Bregman PCA of each head."""

  # Number of heads N, and dimension per head H.
  num_heads: int = 0
  dim_per_head: int = 0

  def setup(self) -> None:
    if self.num_heads <= 0 or self.dim_per_head <= 0:
      raise ValueError(
        f'BregmanCompression {self.name!r} needs num_heads > 0 and '
        f'dim_per_head > 0, got {self.num_heads} and {self.dim_per_head}'
      )
    head = pax_fiddle.Config(bregman.BregmanPCA, input_dims=self.dim_per_head)
    head.set(**bregman_pca_fields(self))
    self.create_children('bregman_layers', [head] * self.num_heads)

  def __call__(
    self,
    inputs: Float[Array, 'B L *D'],
    paddings: Num[Array, 'B L'] | None = None,
  ) -> Float[Array, 'B L N C']:
    """Returns the coefficients of C components.

    Padded positions do not update the components.
    """
    batch, length = inputs.shape[:2]
    heads = self._cast_to_fprop_dtype(inputs).reshape(
      batch * length, self.num_heads, self.dim_per_head
    )
    mask = None if paddings is None else 1 - paddings.reshape(-1, 1)
    coefficients = [
      layer(heads[:, i], mask)[1] for i, layer in enumerate(self.bregman_layers)
    ]
    stacked = jnp.stack(coefficients, axis=1)
    return stacked.reshape(batch, length, *stacked.shape[1:])


def bregman_pca_fields(layer: bregman.BregmanSettings) -> dict[str, object]:
  """Returns the values of the `BregmanSettings` fields of a layer."""
  inherited = pax_fiddle.fields_of(bregman.BregmanSettings.__base__)
  names = {f.name for f in pax_fiddle.fields_of(bregman.BregmanSettings)}
  names -= {f.name for f in inherited}
  return {name: getattr(layer, name) for name in sorted(names)}
