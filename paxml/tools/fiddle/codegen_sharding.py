# SPDX-License-Identifier: Apache-2.0
"""Re-exports code with sharding apart under paxml's path."""

from __future__ import annotations

from pax.tools.fiddler.codegen import (
  codegen_with_sharding_apart,
)
from pax.tools.fiddler.sharding import sharding_diff

__all__ = [
  'codegen_with_sharding_apart',
  'sharding_diff',
]
