# SPDX-License-Identifier: Apache-2.0
"""Projections between the model dimension and the heads, and query scales."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import base_ops

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
SplitDimsMapping = pytypes.SplitDimsMapping
WeightHParams = base_layer.WeightHParams
WeightInit = base_layer.WeightInit

# 1 / log(2), so that the scale starts at 1 with softplus(0) = log(2).
_INVERSE_SOFTPLUS_OF_ZERO = 1.442695041


class AttentionProjection(base_layer.BaseLayer):
  """Projects the model dimension to the heads, or the heads to the model's."""

  # The model dimension.
  input_dim: int = 0
  num_heads: int = 0
  dim_per_head: int = 0
  # Whether the projection is from heads to the model dimension.
  is_output_projection: bool = False
  use_bias: bool = True
  # Whether the weight has one dimension for all heads; needs use_bias=False.
  attention_combine_dims: bool = False
  # Whether an output projection's weight is [N, H, D] instead of [D, N, H]. The
  # sharding `wt` is that of the weight, in the same order.
  use_nhd_shape: bool = False
  # Whether initializers take fan-in and fan-out from the model dimension and
  # the heads instead of the last two dimensions of the weight.
  explicit_fan_in_fan_out_axes: bool = False
  # Computes the product.
  einsum_tpl: LayerTpl = pax_fiddle.template_field(base_ops.EinsumOp)

  def setup(self) -> None:
    if self.attention_combine_dims and self.use_bias:
      raise ValueError(
        'use_bias must be False with attention_combine_dims=True, got True; the'
        ' combined weight has no bias'
      )
    self.create_variable('w', self._weight())
    if self.use_bias:
      self.create_variable('b', self._bias())
    self.create_child('einsum', self.einsum_tpl)

  def __call__(self, inputs: Float[Array, '...']) -> Float[Array, '...']:
    """Returns [..., N, H] for inputs [..., D], or the inverse shapes."""
    weight = self.theta.w
    if self.attention_combine_dims:
      weight = weight.reshape(self._in_order(*self._sizes()))
    model_first = 'NHD' if self._is_nhd else 'DNH'
    if self.is_output_projection:
      equation = f'...NH,{model_first}->...D'
    else:
      equation = f'...D,{model_first}->...NH'
    outputs = self.einsum(equation, inputs, weight)
    return outputs + self.theta.b if self.use_bias else outputs

  def extend_step(
    self,
    inputs: Float[Array, '...'],
    *,
    time_step: pytypes.JTensor | None = None,
  ) -> Float[Array, '...']:
    """Returns the same as `__call__`; the time step is ignored."""
    del time_step
    return self(inputs)

  def product_weight(self) -> Float[Array, '...'] | None:
    """Returns the weight that inputs are multiplied by, laid out as `w`.

    None if the product is not that with one array of floats.
    """
    return self.theta.w

  @property
  def _is_nhd(self) -> bool:
    return self.is_output_projection and self.use_nhd_shape

  def _sizes(self) -> tuple[int, int, int]:
    return self.input_dim, self.num_heads, self.dim_per_head

  def _in_order(self, model: object, *heads: object) -> list:
    """Orders (model, heads...) as the weight stores them."""
    return [*heads, model] if self._is_nhd else [model, *heads]

  def _weight(self) -> WeightHParams:
    model, *heads = self._sizes()
    split_heads = self._split()
    if self.attention_combine_dims:
      heads = [self.num_heads * self.dim_per_head]
      split_heads = _merge_head_axes(split_heads)
    shape = self._in_order(model, *heads)
    axes = self._matrix_axes(len(heads))
    fan_in, fan_out = (
      axes if self.explicit_fan_in_fan_out_axes else (None, None)
    )
    return WeightHParams(
      shape=shape,
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=split_heads and self._in_order(*split_heads),
      fan_in_axes=fan_in,
      fan_out_axes=fan_out,
      matrix_axes=axes,
    )

  def _matrix_axes(self, num_head_dims: int) -> tuple[list[int], list[int]]:
    model, *heads = range(-num_head_dims - 1, 0)
    if self._is_nhd:
      *heads, model = range(-num_head_dims - 1, 0)
    if self.is_output_projection:
      return heads, [model]
    return [model], heads

  def _split(self) -> list | None:
    """Returns the sharding of (model, heads...), in this order."""
    split = _split(self)
    if split and self._is_nhd:
      return [split[-1], *split[:-1]]
    return split

  def _bias(self) -> WeightHParams:
    split = self._split()
    if self.is_output_projection:
      return _zeros(self, [self.input_dim], split and split[:1])
    shape = [self.num_heads, self.dim_per_head]
    return _zeros(self, shape, split and split[1:])


class CombinedQKVProjectionLayer(base_layer.BaseLayer):
  """Projects one input to queries, keys and values with one weight.

  The weight is [3, D, N, H], or [3, D, N*H] with attention_combine_dims; the
  sharding `wt` is that of the dimensions after the first.
  """

  # The model dimension.
  input_dim: int = 0
  num_heads: int = 0
  dim_per_head: int = 0
  use_bias: bool = True
  # See AttentionProjection.
  attention_combine_dims: bool = False
  explicit_fan_in_fan_out_axes: bool = False
  einsum_tpl: LayerTpl = pax_fiddle.template_field(base_ops.EinsumOp)

  def setup(self) -> None:
    split = _split(self)
    heads = [self.num_heads, self.dim_per_head]
    if self.attention_combine_dims:
      heads = [self.num_heads * self.dim_per_head]
      split = _merge_head_axes(split)
    axes = [-len(heads) - 1], list(range(-len(heads), 0))
    fan_in, fan_out = (
      axes if self.explicit_fan_in_fan_out_axes else (None, None)
    )
    weight = WeightHParams(
      shape=[3, self.input_dim, *heads],
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=split and [None, *split],
      fan_in_axes=fan_in,
      fan_out_axes=fan_out,
      matrix_axes=axes,
    )
    self.create_variable('w', weight)
    if self.use_bias:
      bias = _zeros(self, [3, *heads], split and [None, *split[1:]])
      self.create_variable('b', bias)
    self.create_child('einsum', self.einsum_tpl)

  def __call__(
    self, inputs: Float[Array, '*B D']
  ) -> tuple[
    Float[Array, '*B N H'], Float[Array, '*B N H'], Float[Array, '*B N H']
  ]:
    """Returns the queries, keys and values."""
    weight = self.theta.w
    if self.attention_combine_dims:
      weight = weight.reshape(
        3, self.input_dim, self.num_heads, self.dim_per_head
      )
    # K next to the heads makes this a single matrix product.
    outputs = self.einsum('...D,KDNH->...KNH', inputs, weight)
    if self.use_bias:
      heads = (3, self.num_heads, self.dim_per_head)
      outputs = outputs + self.theta.b.reshape(heads)
    # The gradient of a split is a concatenation; the gradients of three slices
    # would be padded with zeros and summed.
    query, key, value = jnp.split(outputs, 3, axis=-3)
    return query.squeeze(-3), key.squeeze(-3), value.squeeze(-3)

  def extend_step(
    self,
    inputs: Float[Array, '*B D'],
    *,
    time_step: pytypes.JTensor | None = None,
  ) -> tuple[
    Float[Array, '*B N H'], Float[Array, '*B N H'], Float[Array, '*B N H']
  ]:
    """Returns the same as `__call__`; the time step is ignored."""
    del time_step
    return self(inputs)


class PerDimScale(base_layer.BaseLayer):
  """Scales each dimension of the queries, initially by 1/√dim."""

  # The head dimension.
  dim: int = 0

  def setup(self) -> None:
    self.create_variable(
      'per_dim_scale',
      WeightHParams(shape=[self.dim], init=WeightInit.Constant(0.0)),
    )

  def __call__(self, inputs: Float[Array, '*B H']) -> Float[Array, '*B H']:
    if inputs.shape[-1] != self.dim:
      raise ValueError(
        f'the last dimension of the inputs must be dim={self.dim}, got shape '
        f'{list(inputs.shape)}'
      )
    scale = jax.nn.softplus(self.theta.per_dim_scale)
    scale = scale * (_INVERSE_SOFTPLUS_OF_ZERO / math.sqrt(self.dim))
    return inputs * scale.astype(inputs.dtype)


def _zeros(
  layer: base_layer.BaseLayer, shape: Sequence[int], split: SplitDimsMapping
) -> WeightHParams:
  return WeightHParams(
    shape=list(shape),
    mesh_shape=layer.mesh_shape,
    init=WeightInit.Constant(0.0),
    tensor_split_dims_mapping=split,
  )


def _split(
  layer: AttentionProjection | CombinedQKVProjectionLayer,
) -> list | None:
  """Returns the sharding `wt` as a list, whose length a mesh prescribes."""
  split = layer.weight_split_dims_mapping.wt
  if split is None:
    return None
  ranks = (2, 3) if layer.attention_combine_dims else (3,)
  if layer.mesh_shape is not None and len(split) not in ranks:
    raise ValueError(
      'weight_split_dims_mapping.wt of a projection must have 3 entries (model'
      ' dim, heads, dim per head), or 2 with attention_combine_dims, got'
      f' {list(split)}'
    )
  return list(split)


def _merge_head_axes(split: list | None) -> list | None:
  """Returns [model axes, axes of both head dimensions] for three entries."""
  if split is None or len(split) == 2:
    return split
  return [split[0], base_layer.merge_splits(split[1:])]
