# SPDX-License-Identifier: Apache-2.0
"""Helpers of quantized layers; this module re-exports."""

from praxis.alias_names import module_getattr
from praxis.layers.einsum_equations import (
  einsum_eqn_to_dimension_numbers,
)
from praxis.layers.find_templates import find_target_tpl
from praxis.layers.quantization.utils.dtypes import (
  INT4_TYPES,
  INT_TYPES,
  bits_to_dtype,
  dtype_to_bits,
  get_smallest_matching_dtype,
)
from praxis.layers.quantization.utils.int4_packing import (
  get_packed_shape,
  pack_4bit,
  unpack_4bit,
)
from praxis.layers.quantization.utils.lora_shapes import (
  get_left_weight_split_dims_mapping,
  get_lora_shape_and_eqn,
  get_right_weight_split_dims_mapping,
)

__getattr__ = module_getattr(__name__)
