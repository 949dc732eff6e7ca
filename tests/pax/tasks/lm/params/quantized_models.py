# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face with integer weights."""

from __future__ import annotations

from pax import experiment_registry
from pax.tasks.lm.params import huggingface
from praxis.layers.quantization import quantize
from praxis.layers.quantization.quantization_hparams import (
  QuantizationMode,
  QuantizationType,
)


@experiment_registry.register
@quantize.for_transformer(
  num_bits=4,
  quantization_type=QuantizationType.PTQ,
  mode=QuantizationMode.INFERENCE,
)
class Int4Qwen3(huggingface.Qwen3):
  """Qwen3 with weights of int4."""
