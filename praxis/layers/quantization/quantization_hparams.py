# SPDX-License-Identifier: Apache-2.0
"""Parameters of quantized layers."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import jax.numpy as jnp

from praxis import pax_fiddle


@enum.unique
class QuantizationType(enum.StrEnum):
  """The quantization method.

  PTQ: post-training quantization. AQT: accurate quantized training, whose
  matmuls have quantized operands. FQ: fake quantization of weights in training.
  FQ_VN: noise on weights instead of rounding. FR: by activation statistics.
  """

  PTQ = 'ptq'
  AQT = 'aqt'
  FQ = 'fq'
  FQ_VN = 'fq_vn'
  FR = 'fr'


@enum.unique
class QuantizationMode(enum.StrEnum):
  """The phase a quantized layer is built for.

  TRAINING: float weights. MATERIALIZE: float weights, which `quantize_weight`
  converts for INFERENCE. QT: quantized matmuls in forward and backward pass.
  CALIB: collection of activation statistics.
  """

  TRAINING = 'training'
  MATERIALIZE = 'materialize'
  INFERENCE = 'inference'
  QT = 'qt'
  CALIB = 'calib'


@enum.unique
class TransformerLayer(enum.StrEnum):
  """The parts of a transformer with separate precisions."""

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
  """Dynamic quantization of activations, with the range of each batch."""

  # Precision in bits; None: activations are not quantized.
  precision: int | None = 8
  # Whether quantized values are unsigned, as after a ReLU.
  unsigned_int_bounds: bool = False
  # Factor of the clipping range; 1.0: no clipping.
  clipping_coeff: float = 1.0
  # Static ranges; not supported.
  stats_config = None
  # Whether gradients do not flow through the scale.
  stop_scale_gradient: bool = False
  # Whether outputs are clipped to the range of float16.
  fp16: bool = False
  # Whether each row has its own scale.
  per_channel: bool = True
  # Whether the range is symmetric around zero, without a zero point.
  symmetric: bool = True
  # Quantizer class; None: `TensorQuantizer`.
  override_quantizer_cls: type | None = None


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class WeightQuantizationParams:
  """Quantization of a weight.

  References:
    Robust Quantization: One Model to Rule Them All,
    https://arxiv.org/abs/2002.07686 (kurtosis)
  """

  # Precision in bits.
  precision: int = 8
  # Whether quantized values are unsigned.
  unsigned_int_bounds: bool = False
  # Factor of the clipping range; 1.0: no clipping.
  clipping_coeff: float = 1.0
  # Whether gradients do not flow through the scale.
  stop_scale_gradient: bool = False
  # Grid search for the clipping factor with the smallest error: the grid has
  # num_optimize_clipping factors from 1 to min_clipping. Both or neither.
  min_clipping: float | None = None
  num_optimize_clipping: int | None = None
  # Whether the range is symmetric around zero, without a zero point.
  use_symmetric: bool = True
  # Whether to add an epsilon to the scale; otherwise a scale of 0 becomes 1.
  add_scale_eps: bool | None = True
  # Whether weights are dequantized before the matmul.
  dequant_upfront: bool = False
  # Storage dtype of quantized weights.
  dtype: Any = jnp.int8
  # Weight of the mean squared quantization error in the loss; None: 0.
  quant_loss_weight: float | None = None
  # Whether the grid search selects a factor per channel.
  optimize_clipping_per_channel: bool = False
  # Number of parts of the contracted dimension with separate scales, for AQT.
  sub_channels: int | None = None
  # Dtype of the computation in FQ.
  calculation_dtype: Any = jnp.float32
  # Whether a non-trainable `step_count` counts training steps.
  use_step_count: bool = False
  # Whether 4-bit values are packed, and the dtype that they are packed into.
  use_int4_packed_weights: bool = True
  int4_packed_weights_container_dtype: Any = jnp.int32
  # FQ_VN: factor, first step and distribution ('uniform' or 'normal') of the
  # noise, and the norm of the weight that scales it: 'Linf' or
  # 'PerChannelLinf'.
  vn_scale: float | None = None
  vn_start_step: int = 0
  vn_noise_type: str = 'uniform'
  vn_weight_norm_type: str = 'PerChannelLinf'
  # Weight in the loss of the squared difference of the weights' kurtosis to
  # `kurt`.
  kurt_loss_weight: float | None = None
  kurt: float = 1.8
  # Number of contracted elements with a common scale; 0: all. Weights of Linear
  # and AttentionProjection have blocks, those of other layers do not, neither
  # stored nor in training.
  block_size: int = 0
  # 'default': scaled by the range. 'bin': sign(w) scaled by the mean of |w|.
  # 'bin_norm': the same after subtracting the mean of w.
  quant_method: str = 'default'
  # Quantizer class; None: `TensorQuantizer`.
  override_quantizer_cls: type | None = None


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class QuantizedTrainingParams:
  """Quantization of matmuls in mode QT."""

  # Precision of the forward and backward pass in bits; None: float.
  bits_fwd: int | None = 8
  bits_bwd: int | None = 8
  # Bits of a cast without a scale. For benchmarks only; results are invalid.
  cast_bits_fwd: int | None = None
  cast_bits_bwd: int | None = None
  # Whether gradients are rounded stochastically.
  random_rounding_bwd: bool = True
  # Accumulation dtypes of the matmuls, and of the products with scales.
  einsum_output_dtype: Any = jnp.bfloat16
  einsum_scale_output_dtype: Any = jnp.float32
  # Dtype of the results; None: no cast.
  bwd_output_dtype: Any = None


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class QuantizationParams:
  """Quantization of a layer."""

  quantization_type: QuantizationType = QuantizationType.PTQ
  mode: QuantizationMode = QuantizationMode.INFERENCE
  # None: activations are not quantized.
  act_params: ActQuantizationParams | None = None
  weight_params: WeightQuantizationParams = dataclasses.field(
    default_factory=WeightQuantizationParams
  )
  quantized_training_params: QuantizedTrainingParams = dataclasses.field(
    default_factory=QuantizedTrainingParams
  )
