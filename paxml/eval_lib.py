# SPDX-License-Identifier: Apache-2.0
"""Re-exports evaluation, decoding and inference jobs under paxml's path."""

from __future__ import annotations

from pax.jobs import decode, evaluate, infer_and_write
from pax.paxml_api.eval_loops import (
  release_all_snapshots,
  run_decode_programs,
  run_eval_programs,
)

__all__ = [
  'decode',
  'evaluate',
  'infer_and_write',
  'release_all_snapshots',
  'run_decode_programs',
  'run_eval_programs',
]
