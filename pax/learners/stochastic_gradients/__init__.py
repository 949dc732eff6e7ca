# SPDX-License-Identifier: Apache-2.0
"""Gradient functions: plain differentiation and DP-SGD."""

from __future__ import annotations

from pax.learners.stochastic_gradients.dp_sgd import (
  AugMulDpSgdStochasticGradient,
  DpSgdStochasticGradient,
  MicrobatchDpSgdStochasticGradient,
  PerLayerDpSgdStochasticGradient,
)
from pax.learners.stochastic_gradients.ghost_clipping import (
  GhostClippingDpSgdStochasticGradient,
)
from pax.learners.stochastic_gradients.percore import (
  PercoreClippedDpSgdGradient,
)
from pax.learners.stochastic_gradients.stochastic_gradient import (
  BaseStochasticGradient,
  DPGradAuxInfo,
  GradAuxInfo,
  StandardGradient,
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
