# SPDX-License-Identifier: Apache-2.0
"""The kinds of summaries, and how a kind is kept in a summary's key."""

from __future__ import annotations

import enum


class SummaryType(enum.Enum):
  """What a summary holds; AGGREGATE_* ones are averaged over hosts."""

  SCALAR = 1
  IMAGE = 2
  AGGREGATE_SCALAR = 3
  AGGREGATE_IMAGE = 4
  TEXT = 5
  AUDIO = 6
  VIDEO = 7
  HISTOGRAM = 8


def get_summary_type_suffix(summary_type: SummaryType) -> str:
  """Returns what is appended to a name to keep its type, as `_scalar`."""
  return f'_{summary_type.name.lower()}'


# Longest first: `_aggregate_scalar` also ends in `_scalar`.
_BY_SUFFIX = sorted(
  ((get_summary_type_suffix(t), t) for t in SummaryType),
  key=lambda pair: -len(pair[0]),
)


def get_summary_type_from_key(key: str) -> SummaryType:
  """Returns the type kept in `key`; ValueError if there is none."""
  for suffix, summary_type in _BY_SUFFIX:
    if key.endswith(suffix):
      return summary_type
  raise ValueError(
    f'summary key {key!r} ends in no type; wanted one of '
    f'{[suffix for suffix, _ in _BY_SUFFIX]}'
  )


def trim_summary_type_from_key(key: str) -> str:
  """Returns `key` without the suffix of its type."""
  suffix = get_summary_type_suffix(get_summary_type_from_key(key))
  return key[: -len(suffix)]


def get_summary_base_type(summary_type: SummaryType) -> SummaryType:
  """Returns the plain type of an AGGREGATE_ type, others as they are."""
  if summary_type is SummaryType.AGGREGATE_SCALAR:
    return SummaryType.SCALAR
  if summary_type is SummaryType.AGGREGATE_IMAGE:
    return SummaryType.IMAGE
  return summary_type
