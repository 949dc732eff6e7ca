# SPDX-License-Identifier: Apache-2.0
"""Variables of quantised and sparse weights, and trees of quantised weights.

Beside a quantised weight `w` stand its scale `w_quantized_scale` and, if zero
is not the middle of its range, `w_quantized_zp`; beside a sparse one its mask
`w_sparsity_mask`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import PartitionSpec

from praxis import pax_fiddle
from praxis.base_layer import sharding, weights
from praxis.base_layer.initializers import WeightInit
from praxis.base_layer.variables import NON_TRAINABLE, PARAMS
from praxis.base_layer.weights import WeightHParams
from praxis.pytypes import JTensor, Nested

QUANTIZED_SCALE_NAME_POSTFIX = '_quantized_scale'
QUANTIZED_ZP_NAME_POSTFIX = '_quantized_zp'
SPARSITY_NAME_POSTFIX = '_sparsity_mask'


class BoxedPartitionSpec(struct.PyTreeNode):
  """A PartitionSpec as a leaf of a tree, which has no arrays."""

  meta: PartitionSpec = struct.field(pytree_node=False)


class QuantizedVariables(nn.Module):
  """What every layer knows of quantised and sparse weights."""

  @nn.nowrap
  def create_quantized_variable(
    self,
    name: str,
    weight_hparams: WeightHParams,
    scale_shape: Sequence[int] = (),
    dtype: Any = jnp.int8,
    use_symmetric: bool = True,
    scale_hparams: WeightHParams | None = None,
  ) -> None:
    """Declares a weight of `dtype`, its scale and perhaps its zero point.

    Args:
      name: of the weight.
      weight_hparams: shape and sharding of the weight.
      scale_shape: shape of the scale, which then is not split.
      dtype: what the weight is stored in.
      use_symmetric: whether there is no zero point.
      scale_hparams: shape and sharding of the scale, in place of scale_shape.

    Raises:
      ValueError: scale_shape and scale_hparams are both given.
    """
    if scale_hparams is None:
      scale_hparams = WeightHParams(shape=scale_shape)
    elif len(scale_shape):
      raise ValueError(
        f'scale_shape={list(scale_shape)} and scale_hparams are both given for '
        f'{name!r}; the shape stands in scale_hparams, leave scale_shape out'
      )
    stored = copy.copy(weight_hparams)
    stored.dtype = dtype
    stored.init = WeightInit.Constant(0)
    self._declare_variable(name, stored)
    self._declare_variable(name + QUANTIZED_SCALE_NAME_POSTFIX, scale_hparams)
    if not use_symmetric:
      self._declare_variable(name + QUANTIZED_ZP_NAME_POSTFIX, scale_hparams)

  @nn.nowrap
  def get_quantized_weight(
    self, name: str, use_symmetric: bool = True
  ) -> tuple[JTensor, JTensor, JTensor | None]:
    """Returns a weight as stored, its scale, and its zero point or None."""
    zero_point = None
    if not use_symmetric:
      zero_point = self._theta_value(name + QUANTIZED_ZP_NAME_POSTFIX)
    scale = self._theta_value(name + QUANTIZED_SCALE_NAME_POSTFIX)
    return self._theta_value(name), scale, zero_point

  @nn.nowrap
  def create_sparse_variable(
    self, name: str, weight_hparams: WeightHParams
  ) -> None:
    """Declares a weight and a mask of its shape, which starts as False."""
    self._declare_variable(name, weight_hparams)
    mask = copy.copy(weight_hparams)
    mask.init = WeightInit.Constant(False)
    mask.dtype = jnp.bool_
    self._declare_variable(name + SPARSITY_NAME_POSTFIX, mask, trainable=False)

  @nn.nowrap
  def get_sparse_weight(self, name: str) -> tuple[JTensor, JTensor]:
    """Returns a weight and its mask."""
    return self._theta_value(name), self.get_var(name + SPARSITY_NAME_POSTFIX)

  def quantize_weight(self) -> dict[str, Nested[JTensor]]:
    """Returns the variables, by collection, with weights quantised.

    A layer that knows nothing of quantisation returns its own weights as they
    are, and what its children return.
    """
    tree = self._of_children('quantize_weight')
    for collection, name in self._own_variables():
      value = self.get_variable(collection, name)
      tree.setdefault(collection, {})[name] = weights.maybe_unbox_value(value)
    return tree

  def quantized_partition_specs(self) -> dict[str, Nested[BoxedPartitionSpec]]:
    """Returns how the variables that `quantize_weight` returns are split."""
    tree = self._of_children('quantized_partition_specs')
    for collection, name in self._own_variables():
      spec = self._partition_spec(self._weights[name])
      tree.setdefault(collection, {})[name] = spec
    return tree

  @nn.nowrap
  def _partition_spec(self, hparams: WeightHParams) -> BoxedPartitionSpec:
    """Returns how a weight is split; its shape may be unknown, as ()."""
    mapping = hparams.tensor_split_dims_mapping
    if mapping is None or not self.mesh_axis_names:
      mapping = [None] * len(hparams.shape)
    spec = sharding.to_partition_spec(mapping, self.mesh_axis_names or ())
    return BoxedPartitionSpec(meta=spec)

  @nn.nowrap
  def _of_children(self, method: str) -> dict[str, Any]:
    """Returns {collection: {child: what its method returns for that}}."""
    tree: dict[str, Any] = {}
    for child in self._child_modules():
      if not child.variables:
        continue
      if isinstance(child, QuantizedVariables):
        result = getattr(child, method)()
      else:
        result = _as_it_is(child, method)
      for collection, values in result.items():
        tree.setdefault(collection, {})[child.name] = values
    return tree

  @nn.nowrap
  def _child_modules(self) -> Iterator[nn.Module]:
    """Yields the children whose variables are below this layer's."""
    fields = {f.name for f in pax_fiddle.fields_of(type(self))} - {'parent'}
    values = [getattr(self, name) for name in sorted(fields)]
    for child in (*self._children.values(), *values):
      # A layer that is shared belongs to the first that uses it.
      if isinstance(child, nn.Module) and child.path[:-1] == self.path:
        yield child

  @nn.nowrap
  def _own_variables(self) -> Iterator[tuple[str, str]]:
    """Yields (collection, name) of the variables that are the layer's own."""
    for name, hparams in self._weights.items():
      trainable = weights.var_is_trainable(hparams)
      collection = PARAMS if trainable else NON_TRAINABLE
      if self.has_variable(collection, name):
        yield collection, name


def _as_it_is(child: nn.Module, method: str) -> dict[str, Any]:
  """Returns the variables of a flax module, or specs that split nothing."""
  tree = {c: child.variables.get(c, {}) for c in (PARAMS, NON_TRAINABLE)}
  tree = weights.maybe_unbox_value({c: t for c, t in tree.items() if t})
  if method == 'quantize_weight':
    return tree
  whole = BoxedPartitionSpec(meta=PartitionSpec())
  return jax.tree.map(lambda _: whole, tree)
