# SPDX-License-Identifier: Apache-2.0
"""Tags of summaries in TensorBoard and `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pax.steps import StepOutput
from pax.summaries import media
from praxis import base_layer

LOSS = 'loss'
STEPS_PER_SEC = 'Steps/sec'
TOKENS_PER_SEC = 'Tokens/sec'
# For batches without token sequences.
EXAMPLES_PER_SEC = 'Examples/sec'
MFU = 'MFU'
NUM_PARAMS = 'num_params'
DP_EPSILON = 'dp_metrics/epsilon'
METRICS_PREFIX = 'Metrics/'
MODEL = 'Model'
TOTAL_NUM_PARAMS = 'Total Num Params'
GLOBAL_BATCH_SIZE = 'Global batch size'
MODEL_PROVENANCE = 'Model vars provenance'
OPT_PROVENANCE = 'Opt states provenance'


class LocalTag(str):
  """Tag of a summary that is not aggregated over hosts.

  `--pax_only_aggregate_summaries` drops these.
  """


_SCALARS = (
  base_layer.SummaryType.SCALAR,
  base_layer.SummaryType.AGGREGATE_SCALAR,
)
_AGGREGATES = (
  base_layer.SummaryType.AGGREGATE_SCALAR,
  base_layer.SummaryType.AGGREGATE_IMAGE,
)


def step_scalars(
  output: StepOutput, prefix: str = METRICS_PREFIX
) -> dict[str, Any]:
  """Returns the scalars of a `StepOutput` by tag, without waiting for them.

  `loss`; `Metrics/<key>` and `Metrics/<key>-weight` of weighted scalars; and
  summaries of layers and learners by path, with the suffix `_scalar`.
  """
  scalars: dict[str, Any] = {LOSS: output.loss}
  scalars |= weighted_scalars(output.weighted_scalars, prefix)
  for key, value in output.summary_tensors.items():
    if base_layer.get_summary_type_from_key(key) in _SCALARS:
      scalars[of_key(key)] = value
  return scalars


def step_summaries(
  output: StepOutput, prefix: str = METRICS_PREFIX
) -> dict[str, Any]:
  """Returns the scalars and media of a `StepOutput` by tag."""
  return step_scalars(output, prefix) | media_of(output.summary_tensors)


def media_of(tensors: Mapping[str, Any]) -> dict[str, media.Media]:
  """Returns the media among summary tensors by tag."""
  by_key = media.of_tensors(tensors)
  return {of_key(key): value for key, value in by_key.items()}


def of_key(key: str) -> str:
  """Returns the tag of a summary key: its type suffix without `_aggregate`."""
  summary_type = base_layer.get_summary_type_from_key(key)
  base_type = base_layer.get_summary_base_type(summary_type)
  tag = base_layer.trim_summary_type_from_key(key)
  tag += base_layer.get_summary_type_suffix(base_type)
  return tag if summary_type in _AGGREGATES else LocalTag(tag)


def weighted_scalars(
  pairs: Mapping[str, tuple[Any, Any]], prefix: str = METRICS_PREFIX
) -> dict[str, Any]:
  """Returns values and weights of weighted scalars by tag."""
  scalars = {}
  for name, (value, weight) in pairs.items():
    scalars[f'{prefix}{name}'] = value
    scalars[f'{prefix}{name}-weight'] = weight
  return scalars
