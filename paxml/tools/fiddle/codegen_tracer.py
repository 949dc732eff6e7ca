# SPDX-License-Identifier: Apache-2.0
"""Re-exports tracers of constants under paxml's path."""

from __future__ import annotations

from pax.tools.fiddler.codegen import (
  make_subclass_mixin,
  make_tracer,
  remove_tracers,
)

__all__ = [
  'make_subclass_mixin',
  'make_tracer',
  'remove_tracers',
]
