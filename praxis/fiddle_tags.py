# SPDX-License-Identifier: Apache-2.0
"""Fiddle tags, by which fields of many Configs are set together.

`fdl.set_tagged(config, tag=DropoutRate, value=0.1)`; a field carries a tag by
`pax_fiddle.field(..., tags=DropoutRate)`.
"""

from __future__ import annotations

import fiddle as fdl


class BaseDType(fdl.Tag):
  """Base of the dtype tags."""


class ParamsDType(BaseDType):
  """Storage dtype of weights."""


class ActivationDType(BaseDType):
  """Dtype of the forward pass."""


class WeightInit(fdl.Tag):
  """Initializer of weights, a base_layer.WeightInit."""


class ParamsSplitDimsMapping(fdl.Tag):
  """Sharding of weights."""


class ActivationSplitDimsMapping(fdl.Tag):
  """Sharding of activations."""


class DropoutRate(fdl.Tag):
  """Dropout rate."""
