# SPDX-License-Identifier: Apache-2.0
"""Parts of a batch that no device can hold, such as texts, kept on the host."""

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
  """Returns (what devices can hold, what they cannot, specs of the former).

  Raises:
    NotImplementedError: there is something of the latter, and there are
      several processes.
  """
  kept = _select(batch, wanted=False)
  if not kept:
    return batch, kept, partitioning_spec
  if jax.process_count() > 1:
    raise NotImplementedError(
      f'{", ".join(kept)} of a batch is no number, and there are'
      f' {jax.process_count()} processes; leave it out of the input'
    )
  if partitioning_spec is not None:
    partitioning_spec = _without(partitioning_spec, kept)
  return _without(batch, kept), kept, partitioning_spec


def merge_back_xla_unsupported_batch(
  out: NestedMap, xla_unsupported_batch: NestedMap
) -> None:
  """Puts beside the outputs in `out` what was kept of their inputs."""
  for name, value in xla_unsupported_batch.items():
    if name not in out:
      out[name] = value
    elif isinstance(value, Mapping) and isinstance(out[name], Mapping):
      merge_back_xla_unsupported_batch(out[name], value)


def _select(batch: Mapping[str, Any], *, wanted: bool) -> NestedMap:
  """Returns the leaves that are, or are not, numbers; no empty maps."""
  found = NestedMap()
  for name, value in batch.items():
    if isinstance(value, Mapping):
      if inner := _select(value, wanted=wanted):
        found[name] = inner
    elif _is_number(value) is wanted:
      found[name] = value
  return found


def _without(tree: Any, taken: Mapping[str, Any]) -> NestedMap:
  """Returns `tree` without the leaves of `taken`."""
  left = NestedMap()
  for name, value in tree.items():
    if name not in taken:
      left[name] = value
    elif isinstance(taken[name], Mapping):
      if inner := _without(value, taken[name]):
        left[name] = inner
  return left


def _is_number(value: Any) -> bool:
  return getattr(value, 'dtype', np.asarray(value).dtype).kind not in 'OSUMm'
