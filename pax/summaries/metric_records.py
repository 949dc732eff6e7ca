# SPDX-License-Identifier: Apache-2.0
"""Summaries of the metric values of clu and SeqIO.

Neither package is a dependency: values are recognized by the names of their
classes and fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pax.summaries import media
from praxis import base_layer

SummaryType = base_layer.SummaryType

# The summary type of a value by the name of its class.
_TYPES = {
  'Scalar': SummaryType.AGGREGATE_SCALAR,
  'Text': SummaryType.TEXT,
  'Image': SummaryType.IMAGE,
  'Audio': SummaryType.AUDIO,
  'Histogram': SummaryType.HISTOGRAM,
  'Summary': SummaryType.VIDEO,
  'Generic': SummaryType.HISTOGRAM,
}
# The field of a value that is written: fields of clu, then those of SeqIO.
_FIELDS = ('value', 'textdata', 'audiodata', 'image', 'values', 'tensor')


def is_record(value: Any) -> bool:
  """Returns whether a value is a metric value of clu or SeqIO."""
  return type(value).__name__ in _TYPES


def summary_of(tag: str, value: Any) -> float | media.Media:
  """Returns the number or the media of a metric value.

  Args:
    tag: The tag, for the message.
    value: A metric value of clu or SeqIO.

  Raises:
    ValueError: The class of the value is unknown.
  """
  kind = _TYPES.get(type(value).__name__)
  field = next((f for f in _FIELDS if hasattr(value, f)), None)
  if kind is None or field is None:
    raise ValueError(
      f'metric {tag!r} of clu or SeqIO must be one of'
      f' {", ".join(_TYPES)}, got {value!r}'
    )
  content = getattr(value, field)
  if kind is SummaryType.AGGREGATE_SCALAR:
    return float(np.mean(np.asarray(content)))
  if field == 'tensor':
    metadata = value.metadata.SerializeToString()
    return media.PluginTensor(SummaryType.HISTOGRAM, content, metadata=metadata)
  if kind is SummaryType.HISTOGRAM:
    bins = getattr(value, 'bins', getattr(value, 'num_buckets', None))
    return media.Media(kind, content, bins=bins)
  if isinstance(content, bytes):
    content = content.decode()
  rate = getattr(value, 'sample_rate', media.AUDIO_SAMPLE_RATE)
  summary = media.Media(kind, content, rate)
  # Values of SeqIO limit the number of images and recordings.
  limit = getattr(value, 'max_outputs', None)
  if limit is not None:
    summary = media.Media(kind, summary.rows()[:limit], rate)
  return summary


def seqio_summaries(
  metrics: Sequence[Mapping[str, Any]], prefix: str
) -> dict[str, float | media.Media]:
  """Returns summaries of numbers and metric values of SeqIO by tag.

  Args:
    metrics: The values of each metric by name.
    prefix: First part of the tags, before a slash.

  Raises:
    ValueError: A value is neither a number nor a metric value.
  """
  summaries = {}
  for values in metrics:
    for name, value in values.items():
      tag = f'{prefix}/{name}'
      summaries[tag] = (
        summary_of(tag, value) if is_record(value) else _number(tag, value)
      )
  return summaries


def _number(tag: str, value: Any) -> float:
  try:
    return float(value)
  except (TypeError, ValueError) as e:
    raise ValueError(
      f'metric {tag!r} must be a number or a seqio.metrics.MetricValue, got'
      f' {value!r}'
    ) from e
