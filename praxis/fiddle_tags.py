# SPDX-License-Identifier: Apache-2.0
"""Tags by which fields of many Configs are found and set together.

`fdl.set_tagged(config, tag=DropoutRate, value=0.1)`; a field carries a tag by
`pax_fiddle.field(..., tags=DropoutRate)`.
"""

from __future__ import annotations

import fiddle as fdl


class BaseDType(fdl.Tag):
  """Any dtype; the tags below divide it."""


class ParamsDType(BaseDType):
  """What weights are stored in."""


class ActivationDType(BaseDType):
  """What layers compute in."""


class WeightInit(fdl.Tag):
  """What weights start from: a base_layer.WeightInit."""


class ParamsSplitDimsMapping(fdl.Tag):
  """How weights are split over the mesh."""


class ActivationSplitDimsMapping(fdl.Tag):
  """How activations are split over the mesh."""


class DropoutRate(fdl.Tag):
  """The share of activations that dropout removes."""
