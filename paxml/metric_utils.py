# SPDX-License-Identifier: Apache-2.0
"""Re-exports the conversion of metrics to numbers under paxml's path."""

from __future__ import annotations

from pax.paxml_api.metric_values import (
  Metrics,
  WeightedScalars,
  as_float,
  as_float_dict,
  compute_metric_values,
  extract_weighted_scalars_and_clu_metrics,
  is_float_convertible,
  is_scalar,
  is_weighted_scalar,
  merge_clu_metrics,
  update_float_dict,
)

__all__ = [
  'Metrics',
  'WeightedScalars',
  'as_float',
  'as_float_dict',
  'compute_metric_values',
  'extract_weighted_scalars_and_clu_metrics',
  'is_float_convertible',
  'is_scalar',
  'is_weighted_scalar',
  'merge_clu_metrics',
  'update_float_dict',
]
