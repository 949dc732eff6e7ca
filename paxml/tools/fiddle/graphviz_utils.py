# SPDX-License-Identifier: Apache-2.0
"""Re-exports pictures of Configs under paxml's path."""

from __future__ import annotations

from pax.tools.graph import (
  render,
)

__all__ = [
  'render',
]
