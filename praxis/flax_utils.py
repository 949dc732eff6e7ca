# SPDX-License-Identifier: Apache-2.0
"""Conversion of flax variables to boxed Pax variables; stacked summaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util
from flax.core import unfreeze
from flax.linen import partitioning

from praxis import base_layer
from praxis.base_layer import BoxedParam, WeightHParams, WeightHParamsCollection
from praxis.pytypes import LogicalAxisRules, PyTree

_AXES = '_axes'


def maybe_unpack_summary(
  tree: PyTree, unpack_summaries: bool, x_times: int
) -> PyTree:
  """Splits each stacked summary into `x_times` if `unpack_summaries`.

  Raises:
    ValueError: the first dimension of a summary is not `x_times`.
  """
  if not unpack_summaries:
    return tree

  def unpack(value: jax.Array) -> list[jax.Array]:
    if value.shape[:1] != (x_times,):
      raise ValueError(
        f'a stacked summary must have first dimension {x_times}, got shape '
        f'{value.shape}'
      )
    return jnp.split(value, x_times)

  return jax.tree.map(unpack, tree)


def maybe_repack_summary(
  tree: PyTree, unpack_summaries: bool, x_times: int
) -> PyTree:
  """Stacks each list of `x_times` summaries if `unpack_summaries`.

  Raises:
    ValueError: a list has another length.
  """
  if not unpack_summaries:
    return tree

  def repack(value: Any) -> Any:
    if not isinstance(value, list):
      return value
    if len(value) != x_times:
      raise ValueError(f'expected {x_times} summaries, got {len(value)}')
    return jnp.stack(value)

  return jax.tree.map(repack, tree, is_leaf=lambda x: isinstance(x, list))


def convert_to_boxed_params(
  var_tree: PyTree,
  logical_axes_rules: LogicalAxisRules | None = None,
  mesh_shape: Sequence[int] | None = None,
  var_collection_map: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, PyTree]:
  """Returns the variables of flax modules as BoxedParams, by collection.

  Args:
    var_tree: variables by collection. Logical axis names come from a collection
      `<name>_axes` (`flax.linen.partitioning`) or from boxes
      (`nn.with_logical_partitioning`).
    logical_axes_rules: (logical axis, mesh axis or None) pairs.
    mesh_shape: the mesh; required with rules.
    var_collection_map: flags of WeightHParamsCollection by collection. By
      default variables outside `params` are non-trainable and averaged over
      replicas.

  Raises:
    ValueError: there are rules but no mesh.
  """
  if logical_axes_rules is not None and mesh_shape is None:
    raise ValueError(
      'logical_axes_rules map axes to a mesh, but ici_mesh_shape is not set'
    )
  flags = {
    base_layer.PARAMS: (),
    **(var_collection_map or {}),
  }
  synced = (
    WeightHParamsCollection.NON_TRAINABLE,
    WeightHParamsCollection.REQUIRES_MEAN_SYNC,
  )
  variables = unfreeze(var_tree)
  boxed = {}
  for name in [n for n in variables if not n.endswith(_AXES)]:
    axes = partitioning.get_axis_names(variables.get(name + _AXES, {}))
    axes_of = traverse_util.flatten_dict(unfreeze(axes))
    # In a collection with axis names, variables without names are replicated.
    unnamed = () if name + _AXES in variables else None
    boxed[name] = traverse_util.unflatten_dict(
      {
        path: _boxed(
          leaf,
          axes_of.get(path, unnamed),
          logical_axes_rules,
          mesh_shape=mesh_shape,
          collections=flags.get(name, synced),
        )
        for path, leaf in traverse_util.flatten_dict(variables[name]).items()
      }
    )
  return boxed


def _boxed(
  leaf: Any, axes: Any, rules: LogicalAxisRules | None, **declared: Any
) -> BoxedParam:
  """Returns a variable as BoxedParam; those of Pax layers already are."""
  if isinstance(leaf, BoxedParam):
    return leaf
  if isinstance(leaf, nn.Partitioned):
    leaf, axes = leaf.value, leaf.names
  mapping = None
  if axes is not None and rules is not None:
    spec = tuple(partitioning.logical_to_mesh_axes(tuple(axes), rules) or ())
    mapping = [*spec, *[None] * (leaf.ndim - len(spec))]
  hparams = WeightHParams(
    shape=leaf.shape,
    dtype=leaf.dtype,
    tensor_split_dims_mapping=mapping,
    **declared,
  )
  return BoxedParam(value=leaf, meta=hparams)
