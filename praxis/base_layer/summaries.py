# SPDX-License-Identifier: Apache-2.0
"""The kinds of summaries, and how a kind is kept in a summary's key."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp


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


def unused_key(
  name: str, summary_type: SummaryType, taken: Callable[[str], bool]
) -> str:
  """Returns the key of `name`, or of `name1`, `name2`, ... if it is taken."""
  suffix = get_summary_type_suffix(summary_type)
  key, count = name + suffix, 0
  while taken(key):
    count += 1
    key = f'{name}{count}{suffix}'
  return key


def batched(value: Any, summary_type: SummaryType) -> Any:
  """Returns a value in which images, videos and audio have a batch dimension.

  Raises:
    ValueError: an image has not 3 or 4 dimensions, a video not 4 or 5, audio
      not 2 or 3.
  """
  kind = get_summary_base_type(summary_type)
  ranks = {SummaryType.IMAGE: 4, SummaryType.VIDEO: 5, SummaryType.AUDIO: 3}
  rank = ranks.get(kind)
  if rank is None or value.ndim == rank:
    return value
  if value.ndim != rank - 1:
    raise ValueError(
      f'a summary of type {summary_type.name} must have {rank} dimensions '
      f'(or {rank - 1}, without the batch), got shape {value.shape}'
    )
  return value[jnp.newaxis]
