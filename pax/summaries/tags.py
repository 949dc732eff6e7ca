# SPDX-License-Identifier: Apache-2.0
"""The names under which numbers appear in TensorBoard and `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from praxis import base_layer

LOSS = 'loss'
STEPS_PER_SEC = 'Steps/sec'
TOKENS_PER_SEC = 'Tokens/sec'
MFU = 'MFU'
LEARNING_RATE = 'lr'
METRICS_PREFIX = 'Metrics/'

_SCALARS = (
  base_layer.SummaryType.SCALAR,
  base_layer.SummaryType.AGGREGATE_SCALAR,
)


def step_scalars(output: Any, prefix: str = METRICS_PREFIX) -> dict[str, Any]:
  """The scalars of a `StepOutput` by tag, as they are: maybe unfinished.

  `loss`; `Metrics/<key>` and `Metrics/<key>-weight` for weighted scalars; and
  summaries of layers and learners by their path, without the type's suffix.
  """
  scalars = {LOSS: output.loss}
  scalars |= weighted_scalars(output.weighted_scalars, prefix)
  for key, value in output.summary_tensors.items():
    if base_layer.get_summary_type_from_key(key) in _SCALARS:
      scalars[base_layer.trim_summary_type_from_key(key)] = value
  return scalars


def weighted_scalars(
  pairs: Mapping[str, tuple[Any, Any]], prefix: str = METRICS_PREFIX
) -> dict[str, Any]:
  """The tags of (value, weight) pairs."""
  scalars = {}
  for name, (value, weight) in pairs.items():
    scalars[f'{prefix}{name}'] = value
    scalars[f'{prefix}{name}-weight'] = weight
  return scalars
