# SPDX-License-Identifier: Apache-2.0
"""Embeddings with per-example gradient norms."""

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
  """Returns the lookup of table rows by index, with per-example norms.

  Args:
    array_lookup: The lookup.
    einsum: Ignored.
  """
  del einsum  # In the signature of paxml.
  return base.with_norms(array_lookup, _squares_of_lookup)


class EmbeddingGhostNorm(embedding_softmax.Embedding):
  """`Embedding` with per-example gradient norms."""

  # Whether the table has the shape of softmax weights, [input_dims,
  # num_classes], to restore the weights of a model with a shared embedding.
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

  def _rows(self, ids: Int[Array, ' N *B']) -> Float[Array, '...']:
    table = self.theta.emb_var
    if self.use_softmax_shared_embedding_shape_weights:
      table = table.transpose()
    if self.lookup_style == 'index':
      return make_index_lookup(self.array_lookup)(table, ids)
    one_hot = jax.nn.one_hot(ids, self.num_classes, dtype=self.fprop_dtype)
    return linears.make_last_dim_projector(self.einsum)(one_hot, table)


def _squares_of_lookup(
  table: Float[Array, 'V D'],
  inputs: tuple[Int[Array, ' N *B']],
  g: Float[Array, 'N *B D'],
) -> Float[Array, ' N']:
  """Returns squared norms; gradients of the same table row sum first."""
  (ids,) = inputs
  ids = ids.reshape(ids.shape[0], -1)
  g = g.reshape(*ids.shape, -1).astype(jnp.float32)
  # Negative indices count from the end; one outside the table has no gradient.
  ids = jnp.where(ids < 0, ids + table.shape[0], ids)
  is_row = (ids >= 0) & (ids < table.shape[0])
  g = jnp.where(is_row[..., None], g, 0.0)

  def squared_norm(
    ids: Int[Array, ' T'], g: Float[Array, 'T D']
  ) -> Float[Array, '']:
    rows, segments = jnp.unique(ids, size=ids.size, return_inverse=True)
    row_grads = jax.ops.segment_sum(g, segments, num_segments=rows.size)
    return jnp.sum(jnp.square(row_grads))

  return jax.vmap(squared_norm)(ids, g)
