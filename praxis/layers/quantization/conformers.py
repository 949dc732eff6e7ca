# SPDX-License-Identifier: Apache-2.0
"""The attention of conformers with quantised products."""

from __future__ import annotations

from praxis.layers import conformers
from praxis.layers.quantization import attentions


class DotProductAttentionWithContext(
  conformers.LimitedContext, attentions.DotProductAttention
):
  """Quantised dot-product attention to a window around each position."""

  # How many positions are visible up to and including the current one, and how
  # many after it; all when absent.
  left_context: int | None = None
  right_context: int | None = None
