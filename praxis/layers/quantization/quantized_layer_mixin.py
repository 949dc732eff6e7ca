# SPDX-License-Identifier: Apache-2.0
"""Mixins that quantize the weights and the einsum of an existing layer.

The layer declares its weight with `create_variable` and calls its child
`einsum`. The mixin overrides `create_variable` to declare the weight quantized,
and takes the place of the child `einsum`.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from praxis import base_layer, pax_fiddle
from praxis.base_layer import WeightHParams, quantized_variables
from praxis.layers import base_ops, einsum_equations
from praxis.layers.quantization import quantization_hparams, quantizer
from praxis.layers.quantization.operations import scale_shapes
from praxis.layers.quantization.sparsity import sparsifier
from praxis.layers.quantization.utils import int4_packing
from praxis.pytypes import JTensor

QuantizationType = quantization_hparams.QuantizationType
PARAMS = base_layer.PARAMS


class QuantizedLayerMixin(quantizer.QuantizationLayer):
  """Quantizes the weights and the einsum of the layer it is mixed into."""

  def __post_init__(self) -> None:
    # The float declarations of the quantized weights, by name.
    object.__setattr__(self, '_float_hparams', {})
    # By weight, the dimension that is stored as two: [num_blocks, block_size].
    object.__setattr__(self, '_blocks', {})
    super().__post_init__()

  @nn.nowrap
  def _equations(self) -> dict[str, str]:
    """Returns the einsum equation of each quantized weight, by name."""
    raise NotImplementedError

  @nn.nowrap
  def create_variable(
    self, name: str, var_hparams: WeightHParams, trainable: bool = True
  ) -> JTensor | jax.ShapeDtypeStruct:
    """Declares a variable; those in `_equations` are quantized weights."""
    if not self.quantization or name not in self._equations():
      return super().create_variable(name, var_hparams, trainable)
    self._float_hparams[name] = var_hparams
    weight, scale = self._quantized_hparams(name, var_hparams)
    if not self._is_inference:
      self.set_up_weights(weight_name=name, weight_params=var_hparams)
    elif self._shards_scales:
      self.set_up_weights(
        weight_name=name, weight_params=weight, scale_hparams=scale
      )
    else:
      self.set_up_weights(
        weight_name=name, weight_params=weight, scale_shape=scale.shape
      )
    return self.get_var(name)

  @nn.nowrap
  def create_child(
    self, name: str, params: pax_fiddle.Config, *, skip_clone: bool = False
  ) -> nn.Module:
    """Creates a child; for `einsum` returns this layer.

    Raises:
      ValueError: `einsum` is not a plain EinsumOp.
    """
    if name == 'einsum' and self._replaces_einsum:
      if params.cls is not base_ops.EinsumOp:
        raise ValueError(
          f'einsum_tpl of {type(self).__name__} must be EinsumOp with '
          f'quantization or sparsity, got {params.cls.__name__}; unset one of '
          'them'
        )
      return self
    return super().create_child(name, params, skip_clone=skip_clone)

  def einsum(
    self, equation: str, inputs: Array, weight: Shaped[Array, '...'], /
  ) -> Array:
    """Returns the einsum of inputs and the weight `w`."""
    return self.multiply('w', equation, inputs, weight)

  def multiply(
    self, name: str, equation: str, x: Array, weight: Shaped[Array, '...']
  ) -> Array:
    """Returns the einsum of `x` and the weight called `name`."""
    dim = self._blocks.get(name)
    kind = self.quantization and self.quantization.quantization_type
    uses_blocks = self._is_inference or kind == QuantizationType.AQT
    if dim is None or not uses_blocks:
      return self.quantized_einsum(
        eqn=equation, x=x, w=weight, reshape=weight.shape, weight_name=name
      )
    size = self._block_size
    rank = weight.ndim - 1 if self._is_inference else weight.ndim
    parsed = einsum_equations.Equation.parse(equation).expand(x.ndim, rank)
    split = parsed.split(dim)
    x_dim = parsed.lhs.index(parsed.rhs[dim])
    if not self._is_inference:
      weight = _in_blocks(weight, dim, size)
    return self.quantized_einsum(
      eqn=split.product,
      x=_in_blocks(x, x_dim, size),
      w=weight,
      reshape=(),
      weight_name=name,
      scale_eqn=split.scale,
      zp_eqn=split.zero_point,
    )

  def quantize_weight(self) -> dict[str, Any]:
    """Returns the layer's variables with quantized weights.

    In mode INFERENCE it quantizes weights that are still floats.

    Raises:
      ValueError: the layer has no `quantization`.
    """
    self._check_is_quantized('quantize_weight')
    tree = super().quantize_weight()
    for name, equation in self._equations().items():
      w = self._trained_weight(name)
      if self._is_inference and w.dtype == self._storage_dtype():
        continue
      dims = einsum_equations.eqn_to_weight_contract_dims(equation)
      if (dim := self._blocks.get(name)) is not None:
        w = _in_blocks(w, dim, self._block_size)
        dims = [i + 1 if i >= dim else i for i in dims]
      quantized, scale, zero_point = self.quantize_array(w, dims)
      if self._is_packed:
        quantized = int4_packing.pack_4bit(
          quantized, self._pack_dim(name), self._storage_dtype()
        )
      tree[PARAMS][name] = quantized.astype(self._storage_dtype())
      tree[PARAMS][name + base_layer.QUANTIZED_SCALE_NAME_POSTFIX] = scale
      if zero_point is not None:
        tree[PARAMS][name + base_layer.QUANTIZED_ZP_NAME_POSTFIX] = zero_point
    return tree

  def quantized_partition_specs(self) -> dict[str, Any]:
    """Returns the partition specs of the variables of `quantize_weight`.

    Scales are sharded as the channels of their weights.

    Raises:
      ValueError: the layer has no `quantization`.
    """
    self._check_is_quantized('quantized_partition_specs')
    tree = super().quantized_partition_specs()
    for name in self._equations():
      weight, scale = self._quantized_hparams(name, self._float_hparams[name])
      hparams = quantized_variables.quantized_weight_hparams(
        name,
        weight,
        scale,
        self._storage_dtype(),
        self._quantization.weight_params.use_symmetric,
      )
      for variable, declared in hparams.items():
        tree[PARAMS][variable] = quantized_variables.partition_spec(
          declared, self.mesh_axis_names
        )
    return tree

  # Private methods.

  @property
  def _replaces_einsum(self) -> bool:
    """Whether this layer takes the place of its child `einsum`."""
    return bool(self.quantization)

  @property
  def _shards_scales(self) -> bool:
    """Whether variables of scales are sharded; else they are replicated."""
    return False

  @nn.nowrap
  def _trained_weight(self, name: str) -> Array:
    """Returns the trained float weight, to be quantized."""
    return self.get_var(name)

  @nn.nowrap
  def _pack_dim(self, name: str) -> int:
    dim, block = super()._pack_dim(name), self._blocks.get(name)
    return dim if block is None or dim < block else dim + 1

  @nn.nowrap
  def _quantized_hparams(
    self, name: str, declared: WeightHParams
  ) -> tuple[WeightHParams, WeightHParams]:
    """Returns the declarations of a weight and its scale for inference.

    The shape of the weight is the unpacked one.
    """
    dims = einsum_equations.eqn_to_weight_contract_dims(self._equations()[name])
    size = self._block_size
    shape = list(declared.shape)
    mapping = declared.tensor_split_dims_mapping
    dim = scale_shapes.block_dim(shape, size, dims)
    if dim is not None:
      self._blocks[name] = dim
      shape, dims = scale_shapes.get_sub_channel_shape(shape, size, dims)
      if mapping is not None:
        mapping = [*mapping[: dim + 1], None, *mapping[dim + 1 :]]
    weight = copy.copy(declared)
    weight.shape, weight.tensor_split_dims_mapping = shape, mapping
    scale = WeightHParams(
      shape=scale_shapes.get_scale_shape(shape, dims),
      mesh_shape=declared.mesh_shape,
      tensor_split_dims_mapping=mapping
      and [axes for i, axes in enumerate(mapping) if i not in dims],
    )
    return weight, scale

  @nn.nowrap
  def _check_is_quantized(self, method: str) -> None:
    if not self.quantization:
      raise ValueError(
        f'{method} needs `quantization` of {type(self).__name__} '
        f'{"/".join(self.path)}, got None; set it in the Config'
      )


class SparseQuantizedLayerMixin(
  QuantizedLayerMixin, sparsifier.SparsityBaseLayer
):
  """A QuantizedLayerMixin with optionally sparse weights."""

  @nn.nowrap
  def create_variable(
    self, name: str, var_hparams: WeightHParams, trainable: bool = True
  ) -> JTensor | jax.ShapeDtypeStruct:
    """Declares a variable; sparse weights in `_equations` get a mask."""
    value = super().create_variable(name, var_hparams, trainable)
    equation = self._equations().get(name)
    if equation is not None and not self._is_inference:
      dims = einsum_equations.eqn_to_weight_contract_dims(equation)
      shape = scale_shapes.get_scale_shape(var_hparams.shape, dims)
      self.create_sparsity_variables(name, var_hparams, shape)
    return value

  def multiply(
    self, name: str, equation: str, x: Array, weight: Shaped[Array, '...']
  ) -> Array:
    """Returns the einsum of `x` and the masked weight called `name`."""
    if not self._is_inference:
      weight = self.sparsifiy(weight, name, x)
    return super().multiply(name, equation, x, weight)

  def quantize_weight(self) -> dict[str, Any]:
    """Returns the quantized variables without those of sparsity."""
    return without(super().quantize_weight(), self.sparsity_variables)

  def quantized_partition_specs(self) -> dict[str, Any]:
    """Returns the partition specs of the variables of `quantize_weight`."""
    return without(super().quantized_partition_specs(), self.sparsity_variables)

  @property
  def _replaces_einsum(self) -> bool:
    return bool(self.quantization) or self.sparsity is not None

  @nn.nowrap
  def _trained_weight(self, name: str) -> Array:
    weight = super()._trained_weight(name)
    return self.masked(weight, name)


def without(tree: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
  """Returns variables by collection, without some and without empty ones."""
  filtered = {
    collection: {k: v for k, v in values.items() if k not in names}
    for collection, values in tree.items()
  }
  return {
    collection: values for collection, values in filtered.items() if values
  }


def _in_blocks(x: Array, dim: int, size: int) -> Array:
  """Reshapes one dimension of `x` to [num_blocks, size]."""
  shape = (*x.shape[:dim], x.shape[dim] // size, size, *x.shape[dim + 1 :])
  return jnp.reshape(x, shape)
