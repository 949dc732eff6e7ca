# SPDX-License-Identifier: Apache-2.0
"""Replaces NestedMaps by Configs that make them, for tools of Fiddle."""

from __future__ import annotations

from typing import Any

from fiddle import daglish

from praxis import pax_fiddle
from praxis.nested_map import NestedMap


def make_nested_map(base: dict[str, Any]) -> NestedMap:
  """Returns a NestedMap of these entries."""
  return NestedMap(base)


def wrap_nested_maps(config: Any) -> Any:
  """Returns a copy without NestedMaps; what it builds has them again."""

  def wrap(value: Any, state: daglish.State) -> Any:
    if isinstance(value, NestedMap):
      value = pax_fiddle.Config(make_nested_map, base=dict(value))
    return state.map_children(value) if state.is_traversable(value) else value

  return daglish.MemoizedTraversal.run(wrap, config)
