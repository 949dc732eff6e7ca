# SPDX-License-Identifier: Apache-2.0
"""Layers that compute per-example gradient norms, for ghost clipping."""

from __future__ import annotations

from pax.ghostnorm.base import ParamWithAux, get_aux, get_param
from pax.ghostnorm.embedding import EmbeddingGhostNorm
from pax.ghostnorm.generic_wrapper import (
  GhostNormPaxConfig,
  WrappedGhostNorm,
  generate_wrapped_template,
)
from pax.ghostnorm.linears import BiasGhostNorm, LinearGhostNorm

__all__ = [
  'BiasGhostNorm',
  'EmbeddingGhostNorm',
  'GhostNormPaxConfig',
  'LinearGhostNorm',
  'ParamWithAux',
  'WrappedGhostNorm',
  'generate_wrapped_template',
  'get_aux',
  'get_param',
]
