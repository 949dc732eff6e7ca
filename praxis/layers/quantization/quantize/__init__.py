# SPDX-License-Identifier: Apache-2.0
"""Quantization of model Configs and experiments; this module re-exports."""

from praxis.alias_names import module_getattr
from praxis.layers.quantization.quantize.decorators import (
  for_diffusion,
  for_transformer,
  mixed_precision_for_transformer,
)
from praxis.layers.quantization.quantize.layer_configs import (
  quantize_attention_layer_weights,
  quantize_dot_product_attention_layer_weights,
  quantize_mq_dot_product_attention_layer_weights,
  quantize_transformer_feed_forward_layer_weights,
  quantize_transformer_layer_weights,
)
from praxis.layers.quantization.quantize.model_configs import (
  set_diffusion_quantization,
  set_inference_mode,
  set_materialize_mode,
  set_transformer_mixed_precision_quantization,
  set_transformer_quantization,
)

__getattr__ = module_getattr(__name__)
