# SPDX-License-Identifier: Apache-2.0
"""Metrics of clu and SeqIO as summaries, without either of them.

Their values are known by the names of their classes and their fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pax.paxml_api import summary_writer
from pax.summaries import media, tags
from praxis import base_layer

SummaryType = base_layer.SummaryType

# The type of a value by the name of its class.
_KINDS = {
  'Scalar': SummaryType.AGGREGATE_SCALAR,
  'Text': SummaryType.TEXT,
  'Image': SummaryType.IMAGE,
  'Audio': SummaryType.AUDIO,
  'Histogram': SummaryType.HISTOGRAM,
  'Summary': SummaryType.VIDEO,
  'Generic': SummaryType.VIDEO,
}
# Where a value keeps what is written: clu's first, then those of SeqIO.
_FIELDS = ('value', 'textdata', 'audiodata', 'image', 'values', 'tensor')
# How many dimensions one image and one recording have.
_RANKS = {SummaryType.IMAGE: 3, SummaryType.AUDIO: 2}


def write_clu_metric_summaries(
  metric_values: Mapping[str, Any],
  step_i: int,
  metrics_prefix: str = tags.METRICS_PREFIX,
) -> None:
  """Writes values of clu, or lists of them, within `as_default()`.

  Raises:
    ValueError: a value is of no known class.
  """
  for name, value in metric_values.items():
    if isinstance(value, Mapping):
      inner = {f'{name}/{key}': part for key, part in value.items()}
      write_clu_metric_summaries(inner, step_i, metrics_prefix)
    elif isinstance(value, list | tuple):
      inner = {f'{name}_{i}': part for i, part in enumerate(value)}
      write_clu_metric_summaries(inner, step_i, metrics_prefix)
    else:
      _write(step_i, f'{metrics_prefix}{name}', value)


def compute_and_write_clu_metric_summaries(
  metrics: Mapping[str, Any],
  step: int,
  metrics_prefix: str = tags.METRICS_PREFIX,
) -> None:
  """Writes `compute_value()` of each metric, within `as_default()`."""
  values = {name: metric.compute_value() for name, metric in metrics.items()}
  write_clu_metric_summaries(values, step, metrics_prefix)


def write_seqio_metric_summaries(
  seqio_metrics: Sequence[Mapping[str, Any]],
  metric_name_prefix: str,
  step: int,
) -> None:
  """Writes numbers and values of SeqIO, within `as_default()`."""
  for found in seqio_metrics:
    for name, value in found.items():
      tag = f'{metric_name_prefix}/{name}'
      if type(value).__name__ in _KINDS:
        _write(step, tag, value)
      else:
        scalar = SummaryType.AGGREGATE_SCALAR
        summary_writer.write_summary_tensor(step, tag, float(value), scalar)


def aggregate_per_replica_summaries(
  summary_tensors: Mapping[str, Any],
) -> dict[str, Any]:
  """Returns the summaries of all replicas, to be called on each of them.

  Scalars become their mean; images and audio are put together, 64 at most;
  videos get a dimension for the replicas.
  """
  axis = base_layer.PMAP_PARALLEL_AXIS_NAME
  found = dict(summary_tensors)
  for key, value in summary_tensors.items():
    kind = base_layer.get_summary_base_type(
      base_layer.get_summary_type_from_key(key)
    )
    if kind is SummaryType.SCALAR:
      found[key] = jax.lax.pmean(value, axis)
    elif kind in _RANKS:
      every = jax.lax.all_gather(value, axis)
      row = every.shape[every.ndim - _RANKS[kind] :]
      found[key] = jnp.reshape(every, (-1, *row))[: media.MAX_PER_TAG]
    elif kind is SummaryType.VIDEO:
      found[key] = jax.lax.all_gather(value, axis)
  return found


def _write(step: int, tag: str, value: Any) -> None:
  kind = _KINDS.get(type(value).__name__)
  field = next((f for f in _FIELDS if hasattr(value, f)), None)
  if kind is None or field is None:
    raise ValueError(
      f'metric {tag!r} must be one of {", ".join(_KINDS)}, as clu and SeqIO'
      f' have them, got {value!r}'
    )
  content = getattr(value, field)
  if isinstance(content, bytes):
    content = content.decode()
  rate = getattr(value, 'sample_rate', media.AUDIO_SAMPLE_RATE)
  summary_writer.write_summary_tensor(
    step, tag, content, kind, sample_rate=rate
  )
