# SPDX-License-Identifier: Apache-2.0
"""What can be set of the quantisation of a layer."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import jax.numpy as jnp

from praxis import pax_fiddle


@enum.unique
class QuantizationType(enum.StrEnum):
  """How a layer learns, or does not learn, to be quantised.

  PTQ: trained in float, quantised afterwards. AQT: products of quantised
  operands in training. FQ: weights are quantised and restored in training.
  FQ_VN: noise in place of that rounding. FR: by statistics of activations.
  """

  PTQ = 'ptq'
  AQT = 'aqt'
  FQ = 'fq'
  FQ_VN = 'fq_vn'
  FR = 'fr'


@enum.unique
class QuantizationMode(enum.StrEnum):
  """What a quantised layer is built for.

  TRAINING: float weights. MATERIALIZE: float weights, of which
  `quantize_weight` makes those of INFERENCE. QT: products forward and backward
  are quantised. CALIB: collects statistics of activations.
  """

  TRAINING = 'training'
  MATERIALIZE = 'materialize'
  INFERENCE = 'inference'
  QT = 'qt'
  CALIB = 'calib'


@enum.unique
class TransformerLayer(enum.StrEnum):
  """The parts of a transformer that can each have a precision."""

  LINEAR = 'linear'
  LINEAR_ACT = 'linear_activation'
  ATTENTION = 'attention'
  ATTENTION_ACT = 'attention_activation'
  EMBEDDING_SOFTMAX = 'embedding_softmax'
  EMBEDDING_SOFTMAX_ACT = 'embedding_softmax_activation'
  EMBEDDING_NGRAMMER = 'embedding_ngrammer'


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class ActQuantizationParams:
  """How the input of a product is quantised, by each batch's own range."""

  # Bits of a number.
  precision: int = 8
  # Whether numbers are 0 and up, which suits what comes after a ReLU.
  unsigned_int_bounds: bool = False
  # What the range is multiplied with; 1.0 leaves it.
  clipping_coeff: float = 1.0
  # A range known beforehand; there is none.
  stats_config = None
  # Whether gradients pass by the scale.
  stop_scale_gradient: bool = False
  # Whether results are kept within the range of float16.
  fp16: bool = False
  # Whether each row has a scale of its own.
  per_channel: bool = True
  # Whether zero is the middle of the range.
  symmetric: bool = True
  # A layer that quantises, in place of `TensorQuantizer`.
  override_quantizer_cls: type | None = None


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class WeightQuantizationParams:
  """How a weight is quantised.

  References:
    Robust Quantization: One Model to Rule Them All,
    https://arxiv.org/abs/2002.07686 (kurtosis)
  """

  # Bits of a number.
  precision: int = 8
  # Whether numbers are 0 and up.
  unsigned_int_bounds: bool = False
  # What the range is multiplied with; 1.0 leaves it.
  clipping_coeff: float = 1.0
  # Whether gradients pass by the scale.
  stop_scale_gradient: bool = False
  # The smallest of num_optimize_clipping factors, from 1 down, of which the
  # range takes the one with the smallest error. Both or neither are given.
  min_clipping: float | None = None
  num_optimize_clipping: int | None = None
  # Whether zero is the middle of the range.
  use_symmetric: bool = True
  # Whether a small number is added to the scale; else a scale of 0 becomes 1.
  add_scale_eps: bool | None = True
  # Whether weights are restored before the product.
  dequant_upfront: bool = False
  # What quantised weights are stored in.
  dtype: Any = jnp.int8
  # Weight of the mean squared error in the loss.
  quant_loss_weight: float | None = None
  # Whether each channel has the best of those factors, or all have one.
  optimize_clipping_per_channel: bool = False
  # In how many parts, each with a scale, AQT divides what is contracted.
  sub_channels: int | None = None
  # What FQ computes in.
  calculation_dtype: Any = jnp.float32
  # Whether a non-trainable `step_count` counts training steps.
  use_step_count: bool = False
  # Whether numbers of 4 bits are packed into numbers of this type.
  use_int4_packed_weights: bool = True
  int4_packed_weights_container_dtype: Any = jnp.int32
  # FQ_VN: factor, first step and distribution ('uniform' or 'normal') of the
  # noise, and by which range of the weight it is scaled: 'Linf' or
  # 'PerChannelLinf'.
  vn_scale: float | None = None
  vn_start_step: int = 0
  vn_noise_type: str = 'uniform'
  vn_weight_norm_type: str = 'PerChannelLinf'
  # Weight in the loss of how far the kurtosis of weights is from `kurt`.
  kurt_loss_weight: float | None = None
  kurt: float = 1.8
  # How many entries of what is contracted share a scale; 0 for all.
  block_size: int = 0
  # 'default': by the range. 'bin', 'bin_norm': one bit, by the mean of |w|,
  # after the mean of w is taken away.
  quant_method: str = 'default'
  # A layer that quantises, in place of `TensorQuantizer`.
  override_quantizer_cls: type | None = None


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class QuantizedTrainingParams:
  """How the mode QT quantises products."""

  # Bits of numbers forward and backward; None leaves floats.
  bits_fwd: int | None = 8
  bits_bwd: int | None = 8
  # Bits of the type that floats are cast to, without scale. For measurements
  # of speed; the numbers make no sense.
  cast_bits_fwd: int | None = None
  cast_bits_bwd: int | None = None
  # Whether gradients are rounded up or down by chance.
  random_rounding_bwd: bool = True
  # What products are accumulated in, and their scaled results.
  einsum_output_dtype: Any = jnp.bfloat16
  einsum_scale_output_dtype: Any = jnp.float32
  # What results are cast to; None leaves them.
  bwd_output_dtype: Any = None


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class QuantizationParams:
  """How a layer is quantised."""

  quantization_type: QuantizationType = QuantizationType.PTQ
  mode: QuantizationMode = QuantizationMode.INFERENCE
  # None leaves the input of the product as it is.
  act_params: ActQuantizationParams | None = None
  weight_params: WeightQuantizationParams = dataclasses.field(
    default_factory=WeightQuantizationParams
  )
  quantized_training_params: QuantizedTrainingParams = dataclasses.field(
    default_factory=QuantizedTrainingParams
  )
