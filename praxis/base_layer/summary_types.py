# SPDX-License-Identifier: Apache-2.0
"""Summary types, and their encoding as suffixes of summary keys."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp


class SummaryType(enum.Enum):
  """The kind of a summary's value; AGGREGATE_* are averaged over hosts."""

  SCALAR = 1
  IMAGE = 2
  AGGREGATE_SCALAR = 3
  AGGREGATE_IMAGE = 4
  TEXT = 5
  AUDIO = 6
  VIDEO = 7
  HISTOGRAM = 8


def get_summary_type_suffix(summary_type: SummaryType) -> str:
  """Returns the suffix of keys of this type, such as `_scalar`."""
  return f'_{summary_type.name.lower()}'


# Longest first: `_aggregate_scalar` also ends in `_scalar`.
_BY_SUFFIX = sorted(
  ((get_summary_type_suffix(t), t) for t in SummaryType),
  key=lambda pair: -len(pair[0]),
)


def get_summary_type_from_key(key: str) -> SummaryType:
  """Returns the type that the suffix of `key` encodes.

  Raises:
    ValueError: `key` has no such suffix.
  """
  for suffix, summary_type in _BY_SUFFIX:
    if key.endswith(suffix):
      return summary_type
  raise ValueError(
    f'summary key {key!r} has no type suffix; expected one of '
    f'{[suffix for suffix, _ in _BY_SUFFIX]}'
  )


def trim_summary_type_from_key(key: str) -> str:
  """Returns `key` without its type suffix."""
  suffix = get_summary_type_suffix(get_summary_type_from_key(key))
  return key[: -len(suffix)]


def get_summary_base_type(summary_type: SummaryType) -> SummaryType:
  """Returns the type of a single host's summary: no AGGREGATE_ type."""
  return SummaryType[summary_type.name.removeprefix('AGGREGATE_')]


def unused_key(
  name: str, summary_type: SummaryType, is_used: Callable[[str], bool]
) -> str:
  """Returns the first unused key of `name`, `name1`, `name2`, ..."""
  suffix = get_summary_type_suffix(summary_type)
  keys = (f'{name}{i or ""}{suffix}' for i in itertools.count())
  return next(key for key in keys if not is_used(key))


def add_batch_dim(value: Any, summary_type: SummaryType) -> Any:
  """Returns the value with a batch dimension if it is one image, video or clip.

  Raises:
    ValueError: the rank of an image is not 3 or 4, of a video not 4 or 5, or of
      audio not 2 or 3.
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
