# SPDX-License-Identifier: Apache-2.0
"""Quantised layers whose precision is one of several, for a search."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn

from praxis import pax_fiddle
from praxis.layers.quantization import (
  attentions,
  automl_select,
  linears,
  quantizer,
)
from praxis.layers.quantization.quantizer import quantized_weights

_SUPPORTED_PRECISIONS = (2, 4, 8)


class SearchableQuantizedLayer(quantized_weights.QuantizedWeights):
  """A mixin that makes precisions searchable; for quantization_type AQT."""

  # Bits to choose from.
  precisions: Sequence[int] = dataclasses.field(default_factory=list)

  def create_tensor_quantizers(self) -> None:
    """Creates `act_quantizer` and `weight_quantizer`, which choose."""
    unknown = set(self.precisions) - set(_SUPPORTED_PRECISIONS)
    if not self.precisions or unknown:
      raise ValueError(
        f'precisions must be some of {_SUPPORTED_PRECISIONS}, got '
        f'{list(self.precisions)}'
      )
    params = self.quantization
    for name, of_operand in (
      ('act_quantizer', params.act_params),
      ('weight_quantizer', params.weight_params),
    ):
      create = quantizer.create_tensor_quantizer
      if of_operand is None:
        self.create_child(name, create(name, None))
        continue
      options = [
        create(f'{name}_int{bits}', of_operand).set(precision=bits)
        for bits in self.precisions
      ]
      select = pax_fiddle.Config(
        automl_select.AutoMLSelect, search_options_tpl=options
      )
      self.create_child(name, select)

  @nn.nowrap
  def replace(self, **kwargs: Any) -> SearchableQuantizedLayer:
    """Returns a copy of the layer with other values of fields."""
    return self.clone(**kwargs)


class SearchableLinear(SearchableQuantizedLayer, linears.Linear):
  """A quantised Linear with several precisions to choose from."""


class SearchableAttentionProjection(
  SearchableQuantizedLayer, attentions.AttentionProjection
):
  """A quantised AttentionProjection with several precisions."""


class SearchableCombinedQKVProjectionLayer(
  SearchableQuantizedLayer, attentions.CombinedQKVProjectionLayer
):
  """A quantised CombinedQKVProjectionLayer with several precisions."""
