# SPDX-License-Identifier: Apache-2.0
"""Re-exports the conversion of experiments to Configs under paxml's path."""

from __future__ import annotations

from pax.tools.fiddler.codegen import (
  from_legacy,
)

__all__ = [
  'from_legacy',
]
