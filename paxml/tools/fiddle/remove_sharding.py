# SPDX-License-Identifier: Apache-2.0
"""Re-exports the removal of sharding under paxml's path."""

from __future__ import annotations

from pax.tools.fiddler.sharding import (
  BASE_LAYER_SHARDING_FIELDS,
  SHARDING_TYPES,
  is_sharding,
  remove_sharding,
)

__all__ = [
  'BASE_LAYER_SHARDING_FIELDS',
  'SHARDING_TYPES',
  'is_sharding',
  'remove_sharding',
]
