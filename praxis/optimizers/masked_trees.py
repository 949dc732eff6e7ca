# SPDX-License-Identifier: Apache-2.0
"""Trees in which some leaves are left out, with their structure kept."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from praxis.pytypes import Nested


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BpropMaskedNode:
  """Stands where a leaf was left out; to JAX a tree without leaves."""


def is_masked(x: Any) -> bool:
  """Returns whether `x` is a `BpropMaskedNode`."""
  return isinstance(x, BpropMaskedNode)


def mask_tree(tree: Nested[Any], mask: Nested[bool]) -> Nested[Any]:
  """Returns `tree` with a `BpropMaskedNode` wherever `mask` is False.

  Leaves of `tree` that are masked already stay so; `mask` may be masked at the
  same places.
  """

  def choose(keep: bool | BpropMaskedNode, leaf: Any) -> Any:
    return leaf if keep is True else BpropMaskedNode()

  return jax.tree.map(choose, mask, tree, is_leaf=is_masked)


def merge_tree(tree: Nested[Any], full: Nested[Any]) -> Nested[Any]:
  """Returns `tree` with its masked leaves taken from `full`."""
  return jax.tree.map(
    lambda leaf, other: other if is_masked(leaf) else leaf,
    tree,
    full,
    is_leaf=is_masked,
  )
