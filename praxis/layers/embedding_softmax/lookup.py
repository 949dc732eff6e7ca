# SPDX-License-Identifier: Apache-2.0
"""Table lookups by gathers or one-hot products."""

from __future__ import annotations

import jax
from jaxtyping import Array, Float, Int

from praxis import base_layer, py_utils, pytypes
from praxis.layers import base_ops


def rows(
  layer: base_layer.BaseLayer,
  table: Float[Array, 'V D'],
  ids: Int[Array, '*B'],
  table_mapping: pytypes.SplitDimsMapping,
) -> Float[Array, '*B D']:
  """Returns the rows `ids` of `table` by the layer's lookup_style.

  By 'matmul' a gather returns the numbers of the one-hot product without its
  cost; devices that classes are sharded over gather their own. Only an einsum
  of another kind multiplies.

  Args:
    layer: has lookup_style, array_lookup and einsum.
    table: the table.
    ids: of the rows; by 'matmul' those outside of the table get zeros.
    table_mapping: mesh axes that shard the table's dimensions.
  """
  einsum = layer.einsum
  # A quantized layer is its own einsum; it scales the rows after the lookup.
  is_own = not isinstance(einsum, base_layer.BaseLayer)
  if layer.lookup_style == 'index':
    vectors = layer.array_lookup(table, ids)
  elif is_own or type(einsum) is base_ops.EinsumOp:
    vectors = base_layer.gather_rows(table, ids, fill_zeros=True)
  else:
    one_hot = jax.nn.one_hot(ids, table.shape[0], dtype=table.dtype)
    return einsum('...y,yz->...z', one_hot, table)
  return shard_as_columns(layer, vectors, table_mapping)


def shard_as_columns(
  layer: base_layer.BaseLayer,
  vectors: Float[Array, '*B D'],
  table_mapping: pytypes.SplitDimsMapping,
) -> Float[Array, '*B D']:
  """Returns looked-up rows, sharded over D as the table is.

  Each device then adds the gradients of all rows to its own columns. If D is
  sharded otherwise, as activations are, XLA may instead sum tables of zeros and
  the gradients of a device's rows, each as large as the gathered table.
  Evaluation and decoding have no gradients: in a decode loop, XLA would gather
  the columns of the table for the logits of each token.
  """
  if layer.do_eval or table_mapping is None:
    return vectors
  if not split_axes(layer, table_mapping[1]):
    return vectors
  return base_layer.maybe_shard(
    vectors,
    [None] * (vectors.ndim - 1) + [table_mapping[1]],
    layer.mesh_axis_names,
    unconstrained_dims=range(vectors.ndim - 1),
  )


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
