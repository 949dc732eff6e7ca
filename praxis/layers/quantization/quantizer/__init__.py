# SPDX-License-Identifier: Apache-2.0
"""Quantizers and layers with quantized weights; this module re-exports."""

from praxis.alias_names import module_getattr
from praxis.layers.quantization.quantizer.quantization_layer import (
  QuantizationLayer,
)
from praxis.layers.quantization.quantizer.quantized_conv import quantized_conv
from praxis.layers.quantization.quantizer.tensor_quantizer import (
  TensorQuantizer,
  create_tensor_quantizer,
  do_static_activation_quantization,
)

__getattr__ = module_getattr(__name__)
