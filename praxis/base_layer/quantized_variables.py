# SPDX-License-Identifier: Apache-2.0
"""Variables of quantized and sparse weights.

A quantized weight `w` has a scale `w_quantized_scale` and, if the quantization
is asymmetric, a zero point `w_quantized_zp`. A sparse weight has a mask
`w_sparsity_mask`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import PartitionSpec

from praxis.base_layer import sharding_annotations, weight_params
from praxis.base_layer.initializers import WeightInit
from praxis.base_layer.variable_collections import NON_TRAINABLE, PARAMS
from praxis.base_layer.weight_params import WeightHParams
from praxis.pytypes import JTensor, Nested

QUANTIZED_SCALE_NAME_POSTFIX = '_quantized_scale'
QUANTIZED_ZP_NAME_POSTFIX = '_quantized_zp'
SPARSITY_NAME_POSTFIX = '_sparsity_mask'


class BoxedPartitionSpec(struct.PyTreeNode):
  """A PartitionSpec in a pytree without arrays."""

  meta: PartitionSpec = struct.field(pytree_node=False)


# Variables or their partition specs, by collection and name.
Collections = dict[str, dict[str, Nested[JTensor | BoxedPartitionSpec]]]


def quantized_weight_hparams(
  name: str,
  weight: WeightHParams,
  scale: WeightHParams,
  dtype: Any,
  use_symmetric: bool,
) -> dict[str, WeightHParams]:
  """Returns the declarations of a weight stored in `dtype`, by variable name.

  Args:
    name: the name of the weight.
    weight: shape and sharding of the weight.
    scale: shape and sharding of the scale and the zero point.
    dtype: the storage dtype of the weight.
    use_symmetric: whether the weight has no zero point.
  """
  stored = copy.copy(weight)
  stored.dtype = dtype
  stored.init = WeightInit.Constant(0)
  hparams = {name: stored, name + QUANTIZED_SCALE_NAME_POSTFIX: scale}
  if not use_symmetric:
    hparams[name + QUANTIZED_ZP_NAME_POSTFIX] = scale
  return hparams


def scale_hparams(
  name: str, shape: Sequence[int], hparams: WeightHParams | None
) -> WeightHParams:
  """Returns the declaration of a scale: `hparams`, or a replicated `shape`.

  Raises:
    ValueError: both are given.
  """
  if hparams is None:
    return WeightHParams(shape=shape)
  if len(shape):
    raise ValueError(
      f'scale_shape={list(shape)} and scale_hparams are both given for '
      f'{name!r}; scale_hparams has the shape, leave scale_shape out'
    )
  return hparams


def sparsity_mask_hparams(weight: WeightHParams) -> WeightHParams:
  """Returns the declaration of a weight's mask, False at first."""
  mask = copy.copy(weight)
  mask.init = WeightInit.Constant(False)
  mask.dtype = jnp.bool_
  return mask


def partition_spec(
  hparams: WeightHParams, mesh_axis_names: Sequence[str] | None
) -> BoxedPartitionSpec:
  """Returns the partition spec of a weight, replicated without a mesh."""
  mapping = hparams.tensor_split_dims_mapping
  if mapping is None or not mesh_axis_names:
    mapping = [None] * len(hparams.shape)
  spec = sharding_annotations.to_partition_spec(mapping, mesh_axis_names or ())
  return BoxedPartitionSpec(meta=spec)


def stacked_partition_specs(
  specs: Collections,
  mapping: Sequence[Any],
  mesh_axis_names: Sequence[str] | None,
) -> Collections:
  """Returns the specs of stacked variables, given those of one of them.

  Args:
    specs: the specs of the variables that are stacked.
    mapping: the sharding of the leading axes.
    mesh_axis_names: the names of the mesh axes; None replicates.
  """
  leading = mapping if mesh_axis_names else [None] * len(mapping)
  prefix = sharding_annotations.to_partition_spec(
    leading, mesh_axis_names or ()
  )
  return jax.tree.map(
    lambda spec: spec.replace(meta=PartitionSpec(*prefix, *spec.meta)),
    specs,
    is_leaf=lambda x: isinstance(x, BoxedPartitionSpec),
  )


def collect(
  modules: Iterable[nn.Module],
  collections_of: Callable[[nn.Module], Collections],
) -> Collections:
  """Returns the results of `collections_of` by collection and module name.

  Modules without variables are skipped.
  """
  result: Collections = {}
  for module in modules:
    if not module.variables:
      continue
    for collection, values in collections_of(module).items():
      result.setdefault(collection, {})[str(module.name)] = values
  return result


def flax_variables(module: nn.Module) -> Collections:
  """Returns the unboxed variables of a flax module, unquantized."""
  collections = {
    name: module.variables.get(name, {}) for name in (PARAMS, NON_TRAINABLE)
  }
  return weight_params.maybe_unbox_value(
    {name: values for name, values in collections.items() if values}
  )


def flax_partition_specs(module: nn.Module) -> Collections:
  """Returns replicated specs for the variables of a flax module."""
  replicated = BoxedPartitionSpec(meta=PartitionSpec())
  return jax.tree.map(lambda _: replicated, flax_variables(module))
