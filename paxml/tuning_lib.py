# SPDX-License-Identifier: Apache-2.0
"""Re-exports early stopping and search spaces under paxml's path."""

from __future__ import annotations

from pax.paxml_api.tuning import (
  DecodeMetrics,
  EvalMetrics,
  compressed,
  get_search_space,
  should_early_stop,
  uncompressed,
)
from pax.programs.early_stopping import is_last_checkpoint
from pax.tuning.aggregators import (
  SUB_EXPERIMENT_STEP_OFFSET as SUB_EXPERIMENT_STEP_INTERVAL,
)

__all__ = [
  'DecodeMetrics',
  'EvalMetrics',
  'SUB_EXPERIMENT_STEP_INTERVAL',
  'compressed',
  'get_search_space',
  'is_last_checkpoint',
  'should_early_stop',
  'uncompressed',
]
