# SPDX-License-Identifier: Apache-2.0
"""Quantization arithmetic; this module re-exports."""

from praxis.alias_names import module_getattr
from praxis.layers.einsum_equations import (
  eqn_to_activation_contract_dims,
  eqn_to_weight_contract_dims,
)
from praxis.layers.quantization.operations.aqt import aqt_einsum
from praxis.layers.quantization.operations.fake_quant import (
  fakequant_activation,
  fakequant_einsum,
  fakequant_vn,
  reduce_einsum_activation_precision,
  reduce_einsum_weight_precision,
  reduce_precision_activation,
)
from praxis.layers.quantization.operations.quantized_einsum import (
  compute_offset,
  dot_general_int,
  dot_general_int_jvp,
  einsum,
  get_scale_eqn,
)
from praxis.layers.quantization.operations.quantized_training import (
  custom_einsum,
)
from praxis.layers.quantization.operations.rounding import (
  FP4,
  clip_to_fp16,
  factorize_weight,
  get_min_max,
  pass_through,
  reduce_precision,
)
from praxis.layers.quantization.operations.scale_shapes import (
  compute_shape_with_subchannels,
  get_scale_shape,
  get_sub_channel_shape,
)
from praxis.layers.quantization.utils.dtypes import INT4_TYPES, INT_TYPES

__getattr__ = module_getattr(__name__)
