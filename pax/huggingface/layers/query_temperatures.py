# SPDX-License-Identifier: Apache-2.0
"""Factors of queries that grow with the position."""

from __future__ import annotations

import dataclasses

from praxis import base_layer, pax_fiddle
from praxis.layers import attentions

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryTemperature:
  """The settings of the factors of a model; see attentions.QueryTemperature."""

  log_scale: float
  interval: int
  offset: int

  def layer(self) -> LayerTpl:
    """Returns the Config of the layer."""
    return pax_fiddle.Config(
      attentions.QueryTemperature,
      log_scale=self.log_scale,
      interval=self.interval,
      offset=self.offset,
    )
