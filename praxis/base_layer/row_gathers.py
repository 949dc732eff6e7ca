# SPDX-License-Identifier: Apache-2.0
"""Gathers of rows of tables, right on every mesh and in every precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from praxis import py_utils
from praxis.base_layer import sharding_annotations
from praxis.pytypes import JTensor


def gather_rows(
  table: JTensor, ids: JTensor | Sequence[Any], *, fill_zeros: bool = False
) -> JTensor:
  """Returns `table[ids]`, the row of a table for each id.

  Gradients of rows are summed in float32: XLA adds rows one after the other, in
  bfloat16 up to 256 times the size of a term. On every mesh gradients are those
  of one device, where XLA alone computes others or does not compile
  (docs/known_issues.md).

  Args:
    table: rows [V, ...].
    ids: an array or lists of numbers.
    fill_zeros: whether rows of ids outside of [0, V) are zeros. Otherwise
      negative ids count from the end.
  """
  ids = jnp.asarray(ids)
  is_narrow = py_utils.is_narrow_float(table.dtype)
  gather = _gather_with_wide_gradient if is_narrow else _gather
  rows = gather(table, _replicate_uneven_dims(ids), fill_zeros)
  return sharding_annotations.zero_shard_padding(rows, ids.ndim)


def _gather(table: JTensor, ids: JTensor, fill_zeros: bool) -> JTensor:
  if not fill_zeros:
    return table[ids]
  return table.at[ids].get(
    mode='fill', fill_value=0, wrap_negative_indices=False
  )


_gather_with_wide_gradient = jax.custom_jvp(_gather, nondiff_argnums=(2,))


@_gather_with_wide_gradient.defjvp
def _gather_jvp(
  fill_zeros: bool,
  primals: tuple[JTensor, JTensor],
  tangents: tuple[JTensor, JTensor],
) -> tuple[JTensor, JTensor]:
  """Returns rows and their tangents; the transpose of these adds float32."""
  table, ids = primals
  rows = _gather_with_wide_gradient(table, ids, fill_zeros)
  wide_tangent = tangents[0].astype(jnp.float32)
  return rows, _gather(wide_tangent, ids, fill_zeros).astype(rows.dtype)


def _replicate_uneven_dims(ids: JTensor) -> JTensor:
  """Returns `ids`, replicated along dimensions that no mesh axis divides.

  XLA fails to compile the lookup of a row for each id if the rows are sharded
  and the last shard of the ids is padded.
  """
  mesh = jax.sharding.get_abstract_mesh()
  sizes = [mesh.shape[axis] for axis in mesh.auto_axes if mesh.shape[axis] > 1]
  uneven = [
    dim
    for dim, length in enumerate(ids.shape)
    if all(length % size for size in sizes)
  ]
  is_compiled = isinstance(ids, jax.core.Tracer)
  if not (sizes and is_compiled and uneven):
    return ids
  return sharding_annotations.replicate_dims(ids, uneven)
