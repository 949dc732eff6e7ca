# SPDX-License-Identifier: Apache-2.0
"""Gives each layer its own sharding, where layers share one object.

Only its values matter, and code is easier to read without a name for each.
"""

from __future__ import annotations

from typing import Any

from fiddle import daglish

from pax.tools.fiddler import remove_sharding


def unshare_sharding(config: Any) -> Any:
  """Returns a copy in which no two fields share a sharding."""
  return _Traversal.run(_copy, config)


class _Traversal(daglish.MemoizedTraversal):
  """Keeps what is shared, but for sharding."""

  def apply(self, value: Any, state: Any) -> Any:
    copied = super().apply(value, state)
    if _is_sharding_at(value, state):
      del self.memo[id(value)]
    return copied


def _copy(value: Any, state: daglish.State) -> Any:
  if _is_sharding_at(value, state):
    return daglish.BasicTraversal.run(_copy_all, value)
  return _copy_all(value, state)


def _copy_all(value: Any, state: daglish.State) -> Any:
  return state.map_children(value) if state.is_traversable(value) else value


def _is_sharding_at(value: Any, state: daglish.State) -> bool:
  last = state.current_path[-1] if state.current_path else None
  return remove_sharding.is_sharding(value, getattr(last, 'name', None))
