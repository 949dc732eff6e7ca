# SPDX-License-Identifier: Apache-2.0
"""Flat names of nested layer summaries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from praxis import base_layer


def flatten_flax_summaries(
  summary_tensors: Mapping[str, Any],
) -> dict[str, Any]:
  """Returns nested summaries by their path, joined with slashes.

  A list, which repeated layers produce, becomes one entry for each layer; its
  index precedes the suffix of the summary type.
  """
  flat: dict[str, Any] = {}
  for key, value in nested_items(summary_tensors, separator='/'):
    flat |= _list_entries(key, value)
  return flat


def _list_entries(key: str, value: Any) -> dict[str, Any]:
  """Returns the entries of a (nested) list by key, or the value itself."""
  if not isinstance(value, list):
    return {key: value}
  suffix = base_layer.get_summary_type_suffix(
    base_layer.get_summary_type_from_key(key)
  )
  name = base_layer.trim_summary_type_from_key(key)
  entries: dict[str, Any] = {}
  for i, layer in enumerate(value):
    entries |= _list_entries(f'{name}_{i}{suffix}', layer)
  return entries


def nested_items(
  tree: Mapping[str, Any], *, prefix: str = '', separator: str = ''
) -> Iterator[tuple[str, Any]]:
  """Yields the keys of a nested mapping, joined, with their values."""
  for key, value in tree.items():
    path = f'{prefix}{separator}{key}' if prefix else key
    if isinstance(value, Mapping):
      yield from nested_items(value, prefix=path, separator=separator)
    else:
      yield path, value
