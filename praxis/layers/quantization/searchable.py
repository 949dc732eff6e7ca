# SPDX-License-Identifier: Apache-2.0
"""Quantized layers with searchable precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn

from praxis import pax_fiddle
from praxis.alias_names import module_getattr
from praxis.layers.quantization import (
  attentions,
  automl_select,
  linears,
  quantizer,
)
from praxis.layers.quantization.quantizer import quantized_weights

__getattr__ = module_getattr(__name__)

_SUPPORTED_PRECISIONS = (2, 4, 8)


class SearchableQuantizedLayer(quantized_weights.QuantizedWeights):
  """A mixin that makes precisions searchable; for quantization_type AQT."""

  # The precisions to choose from, in bits.
  precisions: Sequence[int] = dataclasses.field(default_factory=list)

  def create_tensor_quantizers(self) -> None:
    """Creates `act_quantizer` and `weight_quantizer` with searchable precision.

    Raises:
      ValueError: `precisions` is empty or has unsupported values.
    """
    unknown = set(self.precisions) - set(_SUPPORTED_PRECISIONS)
    if not self.precisions or unknown:
      raise ValueError(
        f'precisions must be some of {_SUPPORTED_PRECISIONS}, got '
        f'{list(self.precisions)}'
      )
    params = self._quantization
    for name, operand_params in (
      ('act_quantizer', params.act_params),
      ('weight_quantizer', params.weight_params),
    ):
      create = quantizer.create_tensor_quantizer
      if operand_params is None or operand_params.precision is None:
        self.create_child(name, create(name, operand_params))
        continue
      options = [
        create(f'{name}_int{bits}', operand_params).set(precision=bits)
        for bits in self.precisions
      ]
      select = pax_fiddle.Config(
        automl_select.AutoMLSelect, search_options_tpl=options
      )
      self.create_child(name, select)

  @nn.nowrap
  def replace(self, **kwargs: Any) -> SearchableQuantizedLayer:
    """Returns a copy of the layer with the given fields replaced."""
    return self.clone(**kwargs)


class SearchableLinear(SearchableQuantizedLayer, linears.Linear):
  """A quantized Linear with searchable precision."""


class SearchableAttentionProjection(
  SearchableQuantizedLayer, attentions.AttentionProjection
):
  """A quantized AttentionProjection with searchable precision."""


class SearchableCombinedQKVProjectionLayer(
  SearchableQuantizedLayer, attentions.CombinedQKVProjectionLayer
):
  """A quantized CombinedQKVProjectionLayer with searchable precision."""
