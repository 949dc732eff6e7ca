# SPDX-License-Identifier: Apache-2.0
"""Embeddings that tell the norm of each example's gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pax.ghostnorm import base, linears
from praxis.base_layer import WeightHParams
from praxis.layers import embedding_softmax
from praxis.layers.embedding_softmax.positions import check_lookup_style


def make_index_lookup(
  array_lookup: Callable[..., Any], einsum: Callable[..., Any] | None = None
) -> Callable[[Any, Any], Any]:
  """Returns the function that finds rows of a table, by their indices.

  `einsum` is not needed; upstream's has that argument.
  """
  del einsum
  return base.with_norms(array_lookup, _squares_of_lookup)


class EmbeddingGhostNorm(embedding_softmax.Embedding):
  """`Embedding` for ghost norm clipping."""

  # Has the shape of a softmax's weights, [input_dims, num_classes], to start
  # from a model that shares the two.
  use_softmax_shared_embedding_shape_weights: bool = False

  def setup(self) -> None:
    if not self.use_softmax_shared_embedding_shape_weights:
      super().setup()
      return
    check_lookup_style(self.lookup_style)
    self.create_variable(
      'emb_var',
      WeightHParams(
        shape=[self.input_dims, self.num_classes],
        mesh_shape=self.mesh_shape,
        tensor_split_dims_mapping=self.weight_split_dims_mapping.wt,
      ),
    )

  def _rows(self, ids: Int[Array, 'N *B']) -> Float[Array, '...']:
    table = self.theta.emb_var
    if self.use_softmax_shared_embedding_shape_weights:
      table = table.transpose()
    if self.lookup_style == 'index':
      return make_index_lookup(self.array_lookup)(table, ids)
    one_hot = jax.nn.one_hot(ids, self.num_classes, dtype=self.fprop_dtype)
    return linears.make_last_dim_projector(self.einsum)(one_hot, table)


def _squares_of_lookup(
  table: Float[Array, 'V D'],
  inputs: tuple[Int[Array, 'N *B']],
  g: Float[Array, 'N *B D'],
) -> Float[Array, ' N']:
  """Returns the squared norms; gradients of one row add up first."""
  (ids,) = inputs
  ids = ids.reshape(ids.shape[0], -1)
  g = g.reshape(*ids.shape, -1).astype(jnp.float32)
  # An index beyond the table has no row to change.
  g = jnp.where((ids < table.shape[0])[..., None], g, 0.0)

  def one(ids: Int[Array, ' T'], g: Float[Array, 'T D']) -> Float[Array, '']:
    rows, place = jnp.unique(ids, size=ids.size, return_inverse=True)
    sums = jax.ops.segment_sum(g, place, num_segments=rows.size)
    return jnp.sum(jnp.square(sums))

  return jax.vmap(one)(ids, g)
