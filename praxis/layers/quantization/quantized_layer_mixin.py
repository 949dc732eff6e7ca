# SPDX-License-Identifier: Apache-2.0
"""How a layer gets a quantised weight and product without being written again.

A layer declares its weight by `create_variable` and multiplies by its child
`einsum`. A mixin before it in the bases declares the weight quantised, and is
the einsum.
"""

from __future__ import annotations

import copy
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from praxis import base_layer, pax_fiddle
from praxis.base_layer import WeightHParams, quantized_variables
from praxis.layers import base_ops
from praxis.layers.quantization import quantization_hparams, quantizer
from praxis.layers.quantization.operations import scale_shapes
from praxis.layers.quantization.sparsity import sparsifier
from praxis.layers.quantization.utils import einsum_equations, int4_packing

QuantizationType = quantization_hparams.QuantizationType
PARAMS = base_layer.PARAMS


class QuantizedLayerMixin(quantizer.QuantizationLayer):
  """Quantises the weights, and the product, of the layer it is mixed into."""

  # Whether block_size holds for its weights.
  _HAS_BLOCKS = True

  def __post_init__(self) -> None:
    # {weight: which of its dimensions is stored as two, blocks and their size}
    object.__setattr__(self, '_blocks', {})
    super().__post_init__()

  @nn.nowrap
  def _equations(self) -> dict[str, str]:
    """Returns the equation of each weight that is quantised, as stored."""
    raise NotImplementedError

  @nn.nowrap
  def create_variable(
    self, name: str, var_hparams: WeightHParams, trainable: bool = True
  ) -> None:
    """Declares a weight; those of `_equations` as they are quantised."""
    if not self.quantization or name not in self._equations():
      self._declare_variable(name, var_hparams, trainable)
      return
    weight, scale = self._quantized_hparams(name, var_hparams)
    if self._is_inference:
      self.set_up_weights(
        weight_name=name, weight_params=weight, scale_hparams=scale
      )
    else:
      self.set_up_weights(weight_name=name, weight_params=var_hparams)

  @nn.nowrap
  def create_child(
    self, name: str, params: pax_fiddle.Config, *, skip_clone: bool = False
  ) -> nn.Module:
    """Creates a child, but for `einsum`, which this layer is itself."""
    if name == 'einsum' and self._multiplies:
      if params.cls is not base_ops.EinsumOp:
        raise ValueError(
          f'einsum_tpl of {type(self).__name__} must be EinsumOp with '
          f'quantization or sparsity, got {params.cls.__name__}; one of them '
          'can do the product'
        )
      return self
    return super().create_child(name, params, skip_clone=skip_clone)

  def einsum(
    self, equation: str, inputs: Array, weight: Shaped[Array, '...']
  ) -> Array:
    """Returns the product of inputs and weight, as the layer asks for it."""
    return self.multiply('w', equation, inputs, weight)

  def multiply(
    self, name: str, equation: str, x: Array, weight: Shaped[Array, '...']
  ) -> Array:
    """Returns the product of `x` with the weight of this name."""
    dim = self._blocks.get(name)
    kind = self.quantization and self.quantization.quantization_type
    splits = self._is_inference or kind == QuantizationType.AQT
    if dim is None or not splits:
      return self.quantized_einsum(
        eqn=equation, x=x, w=weight, reshape=weight.shape, weight_name=name
      )
    size = self._block_size
    rank = weight.ndim - 1 if self._is_inference else weight.ndim
    parsed = einsum_equations.Equation.parse(equation).expand(x.ndim, rank)
    split = parsed.split(dim)
    place = parsed.lhs.index(parsed.rhs[dim])
    if not self._is_inference:
      weight = _in_blocks(weight, dim, size)
    return self.quantized_einsum(
      eqn=split.product,
      x=_in_blocks(x, place, size),
      w=weight,
      reshape=(),
      weight_name=name,
      scale_eqn=split.scale,
      zp_eqn=split.zero_point,
    )

  def quantize_weight(self) -> dict[str, Any]:
    """Returns the layer's variables, with its weights quantised."""
    self._check_is_quantized('quantize_weight')
    tree = super().quantize_weight()
    if self._is_inference:
      return tree
    for name, equation in self._equations().items():
      w = self._final_weight(name)
      dims = einsum_equations.eqn_to_weight_contract_dims(equation)
      if (dim := self._blocks.get(name)) is not None:
        w = _in_blocks(w, dim, self._block_size)
        dims = [i + 1 if i >= dim else i for i in dims]
      numbers, scale, zero_point = self.quantize_array(w, dims)
      if self._is_packed:
        dtype = self.quantization.weight_params
        numbers = int4_packing.pack_4bit(
          numbers,
          self._pack_dim(name),
          dtype.int4_packed_weights_container_dtype,
        )
      numbers = numbers.astype(self._storage_dtype())
      parts = dict(zip(_names(name), (numbers, scale, zero_point), strict=True))
      if zero_point is None:
        parts.popitem()
      tree[PARAMS].update(parts)
    return tree

  def quantized_partition_specs(self) -> dict[str, Any]:
    """Returns how what `quantize_weight` returns is split."""
    self._check_is_quantized('quantized_partition_specs')
    tree = super().quantized_partition_specs()
    if self._is_inference:
      return tree
    for name in self._equations():
      weight, scale = self._quantized_hparams(name, self._weights[name])
      specs = [
        quantized_variables.partition_spec(h, self.mesh_axis_names)
        for h in (weight, scale, scale)
      ]
      parts = dict(zip(_names(name), specs, strict=True))
      if self.quantization.weight_params.use_symmetric:
        parts.popitem()
      tree[PARAMS].update(parts)
    return tree

  # Inside.

  @property
  def _multiplies(self) -> bool:
    """Whether this layer does the product itself."""
    return bool(self.quantization)

  @property
  def _block_size(self) -> int:
    return self.quantization.weight_params.block_size if self._HAS_BLOCKS else 0

  @nn.nowrap
  def _final_weight(self, name: str) -> Array:
    """Returns the float weight that is quantised after training."""
    return self.get_var(name)

  @nn.nowrap
  def _pack_dim(self, name: str) -> int:
    dim, block = super()._pack_dim(name), self._blocks.get(name)
    return dim if block is None or dim < block else dim + 1

  @nn.nowrap
  def _quantized_hparams(
    self, name: str, declared: WeightHParams
  ) -> tuple[WeightHParams, WeightHParams]:
    """Returns the declarations, for inference, of a weight and its scale.

    The shape of the weight is that before it is packed.
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
    weight.shape, weight.tensor_split_dims_mapping = tuple(shape), mapping
    scale = WeightHParams(
      shape=scale_shapes.get_scale_shape(shape, dims),
      mesh_shape=declared.mesh_shape,
      tensor_split_dims_mapping=mapping
      and [axes for i, axes in enumerate(mapping) if i not in dims],
    )
    return weight, scale

  @nn.nowrap
  def _check_is_quantized(self, what: str) -> None:
    if not self.quantization:
      raise ValueError(
        f'{what} needs `quantization` of {type(self).__name__} '
        f'{"/".join(self.path)}, got None; set it in the Config'
      )


class SparseQuantizedLayerMixin(
  QuantizedLayerMixin, sparsifier.SparsityBaseLayer
):
  """A QuantizedLayerMixin whose weights can also be sparse."""

  @nn.nowrap
  def create_variable(
    self, name: str, var_hparams: WeightHParams, trainable: bool = True
  ) -> None:
    """Declares a weight; those of `_equations` with a mask, if sparse."""
    super().create_variable(name, var_hparams, trainable)
    equation = self._equations().get(name)
    if equation is None or self._is_inference:
      return
    dims = einsum_equations.eqn_to_weight_contract_dims(equation)
    shape = scale_shapes.get_scale_shape(var_hparams.shape, dims)
    self.create_sparsity_variables(name, var_hparams, shape)

  def multiply(
    self, name: str, equation: str, x: Array, weight: Shaped[Array, '...']
  ) -> Array:
    """Returns the product of `x` with the weight of this name, masked."""
    if not self._is_inference:
      weight = self.sparsifiy(weight, name, x)
    return super().multiply(name, equation, x, weight)

  def quantize_weight(self) -> dict[str, Any]:
    """Returns the layer's variables, quantised, without those of sparsity."""
    return self._without_masks(super().quantize_weight())

  def quantized_partition_specs(self) -> dict[str, Any]:
    """Returns how what `quantize_weight` returns is split."""
    return self._without_masks(super().quantized_partition_specs())

  @property
  def _multiplies(self) -> bool:
    return bool(self.quantization) or self.sparsity is not None

  @nn.nowrap
  def _final_weight(self, name: str) -> Array:
    weight = super()._final_weight(name)
    return self.masked(weight, name)

  @nn.nowrap
  def _without_masks(self, tree: dict[str, Any]) -> dict[str, Any]:
    names = self.sparsity_variables
    kept = {
      collection: {k: v for k, v in values.items() if k not in names}
      for collection, values in tree.items()
    }
    return {collection: values for collection, values in kept.items() if values}


def _names(name: str) -> tuple[str, str, str]:
  """Returns the names of a weight, its scale and its zero point."""
  return (
    name,
    name + base_layer.QUANTIZED_SCALE_NAME_POSTFIX,
    name + base_layer.QUANTIZED_ZP_NAME_POSTFIX,
  )


def _in_blocks(x: Array, dim: int, size: int) -> Array:
  """Returns `x` with one dimension as two: blocks, and `size`."""
  shape = (*x.shape[:dim], x.shape[dim] // size, size, *x.shape[dim + 1 :])
  return jnp.reshape(x, shape)
