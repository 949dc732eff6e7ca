# SPDX-License-Identifier: Apache-2.0
"""Upstream's path to `pax.learners.stochastic_gradients`."""

from __future__ import annotations

from pax.learners.stochastic_gradients.base import (
  BaseStochasticGradient,
  DPGradAuxInfo,
  GradAuxInfo,
  StandardGradient,
)
from pax.learners.stochastic_gradients.dp_sgd import (
  AugMulDpSgdStochasticGradient,
  DpSgdStochasticGradient,
  MicrobatchDpSgdStochasticGradient,
  PerLayerDpSgdStochasticGradient,
)
from pax.learners.stochastic_gradients.ghost import (
  GhostClippingDpSgdStochasticGradient,
)
from pax.learners.stochastic_gradients.percore import (
  PercoreClippedDpSgdGradient,
)

__all__ = [
  'AugMulDpSgdStochasticGradient',
  'BaseStochasticGradient',
  'DPGradAuxInfo',
  'DpSgdStochasticGradient',
  'GhostClippingDpSgdStochasticGradient',
  'GradAuxInfo',
  'MicrobatchDpSgdStochasticGradient',
  'PerLayerDpSgdStochasticGradient',
  'PercoreClippedDpSgdGradient',
  'StandardGradient',
]
