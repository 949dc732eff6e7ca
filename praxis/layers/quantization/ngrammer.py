# SPDX-License-Identifier: Apache-2.0
"""N-grammers with quantized embedding tables."""

from __future__ import annotations

import copy

import flax.linen as nn

from praxis import pax_fiddle
from praxis.alias_names import module_getattr
from praxis.layers import ngrammer
from praxis.layers.quantization import embedding_softmax, quantization_hparams

__getattr__ = module_getattr(__name__)

QuantizationParams = quantization_hparams.QuantizationParams


class Ngrammer(ngrammer.Ngrammer):
  """An Ngrammer with one quantized table per head."""

  quantization: QuantizationParams = pax_fiddle.instance_field(
    QuantizationParams
  )

  @nn.nowrap
  def _table_tpl(self) -> pax_fiddle.Config:
    return pax_fiddle.Config(
      embedding_softmax.Embedding, quantization=copy.deepcopy(self.quantization)
    )


class VQNgrammer(ngrammer.VQNgrammer):
  """A VQNgrammer with one quantized table per head."""

  quantization: QuantizationParams = pax_fiddle.instance_field(
    QuantizationParams
  )

  @nn.nowrap
  def _ngram_tpl(self) -> pax_fiddle.Config:
    return pax_fiddle.Config(
      Ngrammer, quantization=copy.deepcopy(self.quantization)
    )
