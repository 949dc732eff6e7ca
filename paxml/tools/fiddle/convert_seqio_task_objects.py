# SPDX-License-Identifier: Apache-2.0
"""Re-exports the conversion of SeqIO tasks under paxml's path."""

from __future__ import annotations

from pax.inputs.seqio.configs import (
  convert_seqio_tasks,
)

__all__ = [
  'convert_seqio_tasks',
]
