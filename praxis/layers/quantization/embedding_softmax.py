# SPDX-License-Identifier: Apache-2.0
"""Embeddings and softmaxes with quantized tables, one scale per class."""

from __future__ import annotations

import copy
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from praxis import base_layer, pax_fiddle
from praxis.alias_names import module_getattr
from praxis.base_layer import WeightHParams
from praxis.layers import activations, embedding_softmax
from praxis.layers import linears as float_linears
from praxis.layers.embedding_softmax import fused, lookup, projection, xent
from praxis.layers.quantization import (
  linears,
  operations,
  quantization_hparams,
  quantized_layer_mixin,
  quantizer,
)

__getattr__ = module_getattr(__name__)

QuantizationMode = quantization_hparams.QuantizationMode
QuantizationParams = quantization_hparams.QuantizationParams
QuantizationType = quantization_hparams.QuantizationType

_EQUATION = 'xy,zy->xz'


class Embedding(
  embedding_softmax.Embedding, quantized_layer_mixin.QuantizedLayerMixin
):
  """An Embedding with a quantized table."""

  quantization: QuantizationParams = pax_fiddle.instance_field(
    QuantizationParams
  )
  _HAS_BLOCKS = False

  @nn.nowrap
  def _equations(self) -> dict[str, str]:
    return {'emb_var': _EQUATION}

  # The rows of ids are read without unpacking the table, so it is int8 at any
  # precision.

  @property
  def _is_packed(self) -> bool:
    return False

  @nn.nowrap
  def _storage_dtype(self) -> Any:
    return jnp.int8

  def setup(self) -> None:
    if self.quantization.act_params is not None:
      raise NotImplementedError(
        'act_params must be None for an Embedding, got '
        f'{self.quantization.act_params}: ids are not quantized'
      )
    super().setup()

  def _rows(self, ids: Int[Array, '*B']) -> Float[Array, '*B D']:
    return _dequantized_rows(self, 'emb_var', super()._rows(ids), ids)

  def _table(self) -> Float[Array, 'V D']:
    if self._is_inference:
      return self.theta.emb_var.astype(self.fprop_dtype)
    return _fake_quantized_table(self, super()._table())


class SharedEmbeddingSoftmax(embedding_softmax.SharedEmbeddingSoftmax):
  """A SharedEmbeddingSoftmax whose projection is a quantized Linear."""

  quantization: QuantizationParams = pax_fiddle.instance_field(
    QuantizationParams
  )

  @nn.nowrap
  def create_child(
    self, name: str, params: pax_fiddle.Config, *, skip_clone: bool = False
  ) -> nn.Module:
    """Creates a child; `logits_ffn` gets a quantized Linear."""
    if name == 'logits_ffn':
      linear = pax_fiddle.Config(
        linears.Linear, quantization=copy.deepcopy(self.quantization)
      )
      linear.copy_fields_from(params.linear_tpl)
      params = params.clone().set(linear_tpl=linear)
    return super().create_child(name, params, skip_clone=skip_clone)

  def _rows(self, ids: Int[Array, '*B']) -> Float[Array, '*B D']:
    if self.quantization.mode != QuantizationMode.INFERENCE:
      return super()._rows(ids)
    params = self.quantization.weight_params
    table, scale, zero_point = self.logits_ffn.linear.get_quantized_weight(
      'w', params.use_symmetric
    )
    # [D, V], or [num_blocks, block_size, V] with one scale per block.
    table = jnp.moveaxis(table, -1, 0).astype(self.fprop_dtype)
    flat = table.reshape(self.num_classes, -1)
    rows = lookup.rows(self, flat, ids, self._table_mapping())
    rows = rows.reshape(*ids.shape, *table.shape[1:])
    if zero_point is not None:
      zero_point = zero_point.T
    dequantized = _dequantize_rows(rows, ids, scale.T, zero_point)
    return dequantized.reshape(*ids.shape, -1)

  def _table(self) -> Float[Array, 'V D']:
    linear = self.logits_ffn.linear
    return _fake_quantized_table(linear, super()._table())


class NClassMajorSharedEmbeddingSoftmax(
  embedding_softmax.SharedEmbeddingSoftmax,
  quantized_layer_mixin.QuantizedLayerMixin,
):
  """A SharedEmbeddingSoftmax whose quantized table is [classes, dims].

  The unquantized table `w` is [dims, classes], like the weight of a Linear.
  """

  activation_tpl: pax_fiddle.Config = pax_fiddle.template_field(
    activations.Identity
  )
  quantization: QuantizationParams = pax_fiddle.instance_field(
    QuantizationParams
  )
  # Whether the logits have a bias.
  use_bias: bool = True
  _PACK_4BIT_DIM = 1
  _HAS_BLOCKS = False

  @nn.nowrap
  def _equations(self) -> dict[str, str]:
    return {'w': _EQUATION}

  def _create_projection(self) -> None:
    fused.check(self)
    xent.check_options(self)
    mode = self.quantization.mode
    if mode not in (QuantizationMode.INFERENCE, QuantizationMode.MATERIALIZE):
      raise ValueError(
        f'mode of {type(self).__name__} must be MATERIALIZE or INFERENCE, got '
        f'{mode}'
      )
    by_dims = WeightHParams(
      shape=[self.input_dims, self.num_classes],
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=self.weight_split_dims_mapping.wt,
    )
    if self._is_inference:
      self.create_variable('w', _transposed(by_dims))
    else:
      self._check_quantization()
      self._float_hparams['w'] = by_dims
      self._declare_variable('w', by_dims)
      self._create_shared_state()
    if self.use_bias:
      self.create_child('bias', projection.class_bias(self))
    self.create_child('activation', self.activation_tpl.clone())
    if self.bi_tempered_loss_tpl is not None:
      self.create_child('bi_tempered_loss', self.bi_tempered_loss_tpl.clone())

  def class_table(self) -> fused.ClassTable | None:
    """Returns None: the fused loss does not support these logits."""
    return None

  def get_logits(
    self, inputs: Float[Array, '*B D'], input_ids: Array | None = None
  ) -> Float[Array, '*B V']:
    """Returns float32 logits, soft-capped if `soft_cap_logits` is set."""
    inputs = self.scale_inputs(inputs)
    if self._is_inference:
      logits = self.einsum('...y,zy->...z', inputs, self.theta.w)
    else:
      logits = jnp.einsum('...y,yz->...z', inputs, self.theta.w)
    out = self.activation_split_dims_mapping
    mapping = float_linears.step_mapping(out, logits.ndim)
    logits = base_layer.maybe_shard(logits, mapping, self.mesh_axis_names)
    if self.use_bias:
      logits = self.bias(logits)
    logits = self.activation(logits).astype(jnp.float32)
    return xent.soft_cap(logits, self.soft_cap_logits)

  def _rows(self, ids: Int[Array, '*B']) -> Float[Array, '*B D']:
    return _dequantized_rows(self, 'w', super()._rows(ids), ids)

  def _table(self) -> Float[Array, 'V D']:
    table = self.theta.w.astype(self.fprop_dtype)
    return table if self._is_inference else table.T

  @nn.nowrap
  def _trained_weight(self, name: str) -> Array:
    weight = super()._trained_weight(name)
    return weight if self._is_inference else weight.T

  @nn.nowrap
  def _quantized_hparams(
    self, name: str, declared: WeightHParams
  ) -> tuple[WeightHParams, WeightHParams]:
    if not self._is_inference:
      declared = _transposed(declared)
    return super()._quantized_hparams(name, declared)


def _dequantized_rows(
  layer: quantized_layer_mixin.QuantizedLayerMixin,
  name: str,
  rows: Shaped[Array, '*B D'],
  ids: Int[Array, '*B'],
) -> Float[Array, '*B D']:
  """Returns the rows of a weight, dequantized in mode INFERENCE."""
  if not layer._is_inference:
    return rows
  _, scale, zero_point = layer.get_quantized_weight(
    name, layer._quantization.weight_params.use_symmetric
  )
  return _dequantize_rows(rows, ids, scale, zero_point)


def _dequantize_rows(
  rows: Shaped[Array, '...'],
  ids: Int[Array, '*B'],
  scale: Shaped[Array, ' V *blocks'],
  zero_point: Shaped[Array, ' V *blocks'] | None,
) -> Shaped[Array, '...']:
  """Returns quantized rows, dequantized with the scales of their classes."""
  dequantized = rows * scale[ids][..., None]
  if zero_point is None:
    return dequantized
  return dequantized - zero_point[ids][..., None]


def _fake_quantized_table(
  layer: quantizer.QuantizationLayer, table: Float[Array, 'V D']
) -> Float[Array, 'V D']:
  """Returns the fake-quantized table.

  Raises:
    NotImplementedError: `use_step_count` is set.
  """
  params: Any = layer.quantization
  if params.quantization_type != QuantizationType.AQT:
    if params.weight_params.use_step_count:
      raise NotImplementedError(
        'use_step_count must be False for embeddings, got True'
      )
    return layer.fake_weight(_EQUATION, table)
  dims = operations.eqn_to_weight_contract_dims(_EQUATION)
  quantized, scale, zero_point = layer.weight_quantizer.quantize(
    table, dims, squeeze_scale=False, quantized_dtype=table.dtype
  )
  return layer.weight_quantizer.dequantize(quantized, scale, dims, zero_point)


def _transposed(hparams: WeightHParams) -> WeightHParams:
  transposed = copy.copy(hparams)
  transposed.shape = hparams.shape[::-1]
  mapping = hparams.tensor_split_dims_mapping
  transposed.tensor_split_dims_mapping = mapping and list(mapping)[::-1]
  return transposed
