# SPDX-License-Identifier: Apache-2.0
"""Keeps leaves that XLA does not support, such as strings, on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from praxis import pytypes

NestedMap = pytypes.NestedMap


def split_out_xla_unsupported_batch(
  batch: NestedMap, partitioning_spec: Any = None
) -> tuple[NestedMap, NestedMap, Any]:
  """Returns (supported leaves, unsupported leaves, specs of the former).

  Raises:
    NotImplementedError: There are unsupported leaves and several processes.
  """
  unsupported = _select_unsupported(batch)
  if not unsupported:
    return batch, unsupported, partitioning_spec
  if jax.process_count() > 1:
    raise NotImplementedError(
      f'{", ".join(unsupported)} of a batch is not numeric, and there are'
      f' {jax.process_count()} processes; remove it from the input'
    )
  if partitioning_spec is not None:
    partitioning_spec = _without(partitioning_spec, unsupported)
  return _without(batch, unsupported), unsupported, partitioning_spec


def merge_back_xla_unsupported_batch(
  out: Any, xla_unsupported_batch: Mapping[str, Any]
) -> None:
  """Adds the unsupported leaves to `out`, where it has no leaf of the name."""
  for name, value in xla_unsupported_batch.items():
    if name not in out:
      out[name] = value
    elif isinstance(value, Mapping) and isinstance(out[name], Mapping):
      merge_back_xla_unsupported_batch(out[name], value)


def _select_unsupported(batch: Mapping[str, Any]) -> NestedMap:
  """Returns the leaves that are not numeric, without empty maps."""
  unsupported = NestedMap()
  for name, value in batch.items():
    if isinstance(value, Mapping):
      if inner := _select_unsupported(value):
        unsupported[name] = inner
    elif not _is_numeric(value):
      unsupported[name] = value
  return unsupported


def _without(tree: Mapping[str, Any], removed: Mapping[str, Any]) -> NestedMap:
  """Returns `tree` without the leaves of `removed`."""
  remaining = NestedMap()
  for name, value in tree.items():
    if name not in removed:
      remaining[name] = value
    elif isinstance(removed[name], Mapping):
      if inner := _without(value, removed[name]):
        remaining[name] = inner
  return remaining


def _is_numeric(value: Any) -> bool:
  return getattr(value, 'dtype', np.asarray(value).dtype).kind not in 'OSUMm'
