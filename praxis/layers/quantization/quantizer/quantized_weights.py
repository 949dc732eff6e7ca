# SPDX-License-Identifier: Apache-2.0
"""QuantizedWeights: declaration, storage and creation of quantized weights."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from praxis import base_layer, pax_fiddle
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers.quantization import operations, quantization_hparams
from praxis.layers.quantization.operations import fake_quant, rounding
from praxis.layers.quantization.quantizer import tensor_quantizer, value_checks
from praxis.layers.quantization.utils import dtypes, int4_packing

QuantizationMode = quantization_hparams.QuantizationMode
QuantizationType = quantization_hparams.QuantizationType
QuantizationParams = quantization_hparams.QuantizationParams


class QuantizedWeights(base_layer.BaseLayer):
  """Declares weights with `set_up_weights`, in float or quantized."""

  # Quantization of weights and einsums; None: float.
  quantization: QuantizationParams | None = pax_fiddle.instance_field(
    QuantizationParams
  )
  # The dimension along which 4-bit weights are packed.
  _PACK_4BIT_DIM: ClassVar[int | None] = None

  def create_tensor_quantizers(self) -> None:
    """Creates the children `act_quantizer` and `weight_quantizer`."""
    params = self.quantization
    for name, operand_params in (
      ('act_quantizer', params.act_params if params else None),
      ('weight_quantizer', params.weight_params if params else None),
    ):
      create = tensor_quantizer.create_tensor_quantizer
      self.create_child(name, create(name, operand_params))

  @nn.nowrap
  def set_up_weights(
    self,
    *,
    weight_name: str,
    weight_params: WeightHParams,
    scale_shape: Sequence[int] = (),
    scale_hparams: WeightHParams | None = None,
  ) -> None:
    """Declares a weight: float, or in mode INFERENCE quantized with its scale.

    Args:
      weight_name: the name of the weight.
      weight_params: shape and sharding of the weight.
      scale_shape: the shape of a replicated scale.
      scale_hparams: shape and sharding of the scale; replaces `scale_shape`.

    Raises:
      ValueError: the fields of `quantization` contradict each other.
      NotImplementedError: activations have static ranges, or
        quantization_type FR is served.
    """
    if not self.quantization:
      self._declare_variable(weight_name, weight_params)
      return
    self._check_quantization()
    if self._is_inference:
      self.create_quantized_variable(
        weight_name,
        self._packed(weight_name, weight_params),
        scale_shape,
        dtype=self._storage_dtype(),
        use_symmetric=self._quantization.weight_params.use_symmetric,
        scale_hparams=scale_hparams,
      )
    else:
      self._declare_variable(weight_name, weight_params)
    self._create_shared_state()

  @nn.nowrap
  def quantize_array(
    self, w: Array, contract_dims: Sequence[int]
  ) -> rounding.Quantized:
    """Returns a quantized weight, its scale and its zero point or None.

    Scale and zero point have the uncontracted dimensions of the weight.

    Raises:
      ValueError: the storage dtype does not hold the quantized values.
    """
    value_checks.check_storage(self._quantization, is_packed=self._is_packed)
    params = self._quantization.weight_params
    w = w.astype(self.dtype)
    if self._quantization.quantization_type == QuantizationType.AQT:
      return self.weight_quantizer.quantize(
        w, contract_dims, quantized_dtype=params.dtype
      )
    quantized = operations.reduce_precision(
      w,
      contract_dims,
      bits=params.precision,
      percentile=params.clipping_coeff,
      use_symmetric=params.use_symmetric,
      use_fp=dtypes.is_fp8(params.dtype),
      quant_method=params.quant_method,
    )
    return fake_quant.squeezed(quantized, contract_dims)

  # Private methods.

  @property
  def _quantization(self) -> QuantizationParams:
    """The settings of a layer that is quantized."""
    if self.quantization is None:
      raise ValueError(
        f'{type(self).__name__}.quantization must be set to quantize, got None'
      )
    return self.quantization

  @property
  def _is_inference(self) -> bool:
    params = self.quantization
    return params is not None and params.mode == QuantizationMode.INFERENCE

  @property
  def _is_packed(self) -> bool:
    params = self._quantization.weight_params
    return params.precision == 4 and params.use_int4_packed_weights

  @nn.nowrap
  def _pack_dim(self, name: str) -> int:
    """Returns the dimension of a weight along which it is packed."""
    del name  # Subclasses may have several weights.
    if self._PACK_4BIT_DIM is None:
      raise ValueError(
        f'{type(self).__name__} must set _PACK_4BIT_DIM to pack 4-bit weights, '
        'or have use_int4_packed_weights=False'
      )
    return self._PACK_4BIT_DIM

  @nn.nowrap
  def _packed_weight(self, name: str) -> int4_packing.PackedWeight | None:
    """Returns a weight as it is stored in 4 bits; None if it is not packed."""
    if not (self._is_inference and self._is_packed):
      return None
    dtype = self._quantization.weight_params.dtype
    value = super()._theta_value(name)
    return int4_packing.PackedWeight(value, self._pack_dim(name), dtype)

  def _theta_value(self, name: str) -> Array:
    """Returns a weight, unpacked from int4 or bitcast to fp8."""
    value = super()._theta_value(name)
    has_scale = (
      name + base_layer.QUANTIZED_SCALE_NAME_POSTFIX in self._weight_hparams
    )
    if not has_scale:
      return value
    if (packed := self._packed_weight(name)) is not None:
      value = packed.unpack()
    dtype = self._quantization.weight_params.dtype
    if dtypes.is_fp8(dtype):
      return lax.bitcast_convert_type(value, dtype).astype(self.fprop_dtype)
    return value.astype(jnp.int8) if value.dtype in dtypes.INT4_TYPES else value

  @nn.nowrap
  def _packed(self, name: str, hparams: WeightHParams) -> WeightHParams:
    """Returns a declaration with the packed shape."""
    if not self._is_packed:
      return hparams
    factor = int4_packing.packing_factor(self._storage_dtype())
    dim = self._pack_dim(name)
    hparams = copy.copy(hparams)
    hparams.shape = tuple(
      int4_packing.get_packed_shape(hparams.shape, dim, factor)
    )
    return hparams

  @nn.nowrap
  def _storage_dtype(self) -> Any:
    params = self._quantization.weight_params
    if self._is_packed:
      return params.int4_packed_weights_container_dtype
    return jnp.int8 if dtypes.is_fp8(params.dtype) else params.dtype

  @nn.nowrap
  def _create_shared_state(self) -> None:
    """Creates quantizers and counters, once for all weights of the layer."""
    params = self._quantization
    if params.quantization_type == QuantizationType.AQT:
      if 'weight_quantizer' not in self._children:
        self.create_tensor_quantizers()
    scalar = functools.partial(
      WeightHParams, shape=[], init=WeightInit.Constant(0), dtype=jnp.int32
    )
    declarations = {}
    if params.weight_params.use_step_count:
      declarations['step_count'] = scalar()
    if params.mode == QuantizationMode.CALIB:
      declarations['framestat'] = scalar(shape=[1], dtype=jnp.bfloat16)
    for name in declarations.keys() - self._weight_hparams.keys():
      self._declare_variable(name, declarations[name], trainable=False)

  @nn.nowrap
  def _check_quantization(self) -> None:
    params = self._quantization
    weight = params.weight_params
    value_checks.check_levels(params)
    bits = dtypes.dtype_to_bits(weight.dtype)
    if bits < weight.precision:
      raise ValueError(
        f'dtype of weights must have at least precision={weight.precision} '
        f'bits, got {jnp.dtype(weight.dtype)}'
      )
    if self._is_packed and (bits != 8 or dtypes.is_fp8(weight.dtype)):
      raise ValueError(
        f'packed weights must have dtype int8, got {jnp.dtype(weight.dtype)}; '
        'set use_int4_packed_weights=False'
      )
    is_fr = params.quantization_type == QuantizationType.FR
    if params.mode == QuantizationMode.CALIB and not is_fr:
      raise ValueError(
        f'mode CALIB needs quantization_type FR, got {params.quantization_type}'
      )
    if self._is_inference:
      if is_fr:
        raise NotImplementedError(
          'quantization_type FR has no mode INFERENCE; use PTQ, FQ or AQT'
        )
      value_checks.check_fp8(params)
    if tensor_quantizer.do_static_activation_quantization(params.act_params):
      raise NotImplementedError(
        'act_params.stats_config must be None, got '
        f'{params.act_params.stats_config}; only dynamic ranges are supported'
      )
