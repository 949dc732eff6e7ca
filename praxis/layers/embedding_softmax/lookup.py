# SPDX-License-Identifier: Apache-2.0
"""Table lookups by one-hot products or by gathers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer, py_utils, pytypes
from praxis.layers import base_ops


def rows(
  layer: base_layer.BaseLayer,
  table: Float[Array, 'V D'],
  ids: Int[Array, '*B'],
  class_axes: pytypes.DimShardingAnnotation,
) -> Float[Array, '*B D']:
  """Returns the rows `ids` of `table` by the layer's lookup_style.

  The mesh axes `class_axes` shard the classes.
  """
  if layer.lookup_style == 'index':
    return layer.array_lookup(table, ids)
  return by_matmul(layer, table, ids, class_axes)


def by_matmul(
  layer: base_layer.BaseLayer,
  table: Float[Array, 'V D'],
  ids: Int[Array, '*B'],
  class_axes: pytypes.DimShardingAnnotation,
) -> Float[Array, '*B D']:
  """Returns the rows `ids` of `table`, and zeros for ids outside of it.

  If the mesh axes `class_axes` shard the classes, a one-hot product lets each
  device multiply its own classes. Otherwise a gather returns the same numbers
  without the cost of the product.
  """
  einsum = layer.einsum
  # A quantized layer is its own einsum; it scales the rows after the lookup.
  is_own = not isinstance(einsum, base_layer.BaseLayer)
  is_plain = is_own or type(einsum) is base_ops.EinsumOp
  if is_plain and num_parts(layer, class_axes) == 1:
    return base_layer.gather_rows(
      lambda ids: table.at[ids].get(
        mode='fill', fill_value=0, wrap_negative_indices=False
      ),
      ids,
    )
  one_hot = jax.nn.one_hot(ids, table.shape[0], dtype=table.dtype)
  product = jnp.einsum if is_plain else einsum
  return product('...y,yz->...z', one_hot, table)


def num_parts(
  layer: base_layer.BaseLayer, axes: pytypes.DimShardingAnnotation
) -> int:
  """Returns the number of shards of a dimension on the mesh of `layer`."""
  return layer.get_shard_count_on_dim(split_axes(layer, axes))


def split_axes(
  layer: base_layer.BaseLayer, axes: pytypes.DimShardingAnnotation
) -> tuple[str, ...]:
  """Returns the mesh axes of more than one device that shard a dimension."""
  if layer.mesh_shape is None or axes in (None, -1):
    return ()
  (entry,) = base_layer.to_partition_spec([axes], layer.mesh_axis_names)
  names = () if entry is None else py_utils.mesh_axes(entry)
  return tuple(a for a in names if layer.get_shard_count_on_dim(a) > 1)
