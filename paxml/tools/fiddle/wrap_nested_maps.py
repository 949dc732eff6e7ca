# SPDX-License-Identifier: Apache-2.0
"""Re-exports the conversion of NestedMaps under paxml's path."""

from __future__ import annotations

from pax.tools.fiddler.config_normalization import (
  make_nested_map,
  wrap_nested_maps,
)

__all__ = [
  'make_nested_map',
  'wrap_nested_maps',
]
