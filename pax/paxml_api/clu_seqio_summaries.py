# SPDX-License-Identifier: Apache-2.0
"""Writers of metric values of clu and SeqIO, with the signatures of paxml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pax.summaries import media, metric_records, tags
from pax.summaries.summary_writer import default_summary_writer
from praxis import base_layer

SummaryType = base_layer.SummaryType

# Rank of one image (height, width, channels) and one recording.
_RANKS = {SummaryType.IMAGE: 3, SummaryType.AUDIO: 2}


def write_clu_metric_summaries(
  metric_values: Mapping[str, Any],
  step_i: int,
  metrics_prefix: str = tags.METRICS_PREFIX,
) -> None:
  """Writes metric values of clu, possibly nested, to the default writer.

  Raises:
    ValueError: the class of a value is unknown.
  """
  for name, value in metric_values.items():
    if isinstance(value, Mapping):
      children = {f'{name}/{key}': child for key, child in value.items()}
      write_clu_metric_summaries(children, step_i, metrics_prefix)
    elif isinstance(value, list | tuple):
      children = {f'{name}_{i}': child for i, child in enumerate(value)}
      write_clu_metric_summaries(children, step_i, metrics_prefix)
    else:
      _write(step_i, f'{metrics_prefix}{name}', value)


def compute_and_write_clu_metric_summaries(
  metrics: Mapping[str, Any],
  step: int,
  metrics_prefix: str = tags.METRICS_PREFIX,
) -> None:
  """Writes `compute_value()` of each metric to the default writer."""
  values = {name: metric.compute_value() for name, metric in metrics.items()}
  write_clu_metric_summaries(values, step, metrics_prefix)


def write_seqio_metric_summaries(
  seqio_metrics: Sequence[Mapping[str, Any]],
  metric_name_prefix: str,
  step: int,
) -> None:
  """Writes numbers and metric values of SeqIO to the default writer."""
  summaries = metric_records.seqio_summaries(seqio_metrics, metric_name_prefix)
  if writer := default_summary_writer():
    writer.write(step, summaries)


def aggregate_per_replica_summaries(
  summary_tensors: Mapping[str, Any],
) -> dict[str, Any]:
  """Aggregates summaries over replicas; to be called within pmap.

  Scalars are averaged. Images and audio are concatenated, at most 64 of them.
  Videos get a leading replica dimension. Other types remain per replica.
  """
  axis = base_layer.PMAP_PARALLEL_AXIS_NAME
  aggregated = dict(summary_tensors)
  for key, value in summary_tensors.items():
    kind = base_layer.get_summary_base_type(
      base_layer.get_summary_type_from_key(key)
    )
    if kind is SummaryType.SCALAR:
      aggregated[key] = jax.lax.pmean(value, axis)
    elif kind in _RANKS:
      gathered = jax.lax.all_gather(value, axis)
      shape = gathered.shape[gathered.ndim - _RANKS[kind] :]
      rows = jnp.reshape(gathered, (-1, *shape))
      aggregated[key] = rows[: media.MAX_PER_TAG]
    elif kind is SummaryType.VIDEO:
      aggregated[key] = jax.lax.all_gather(value, axis)
  return aggregated


def _write(step: int, tag: str, value: Any) -> None:
  summary = metric_records.summary_of(tag, value)
  if writer := default_summary_writer():
    writer.write(step, {tag: summary})
