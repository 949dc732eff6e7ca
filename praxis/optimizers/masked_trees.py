# SPDX-License-Identifier: Apache-2.0
"""Pytrees with masked leaves, which keep their structure."""

from __future__ import annotations

from typing import Any, TypeVar

import jax

from praxis import py_utils
from praxis.pytypes import Nested

BpropMaskedNode = py_utils.BpropMaskedNode
is_masked = py_utils.is_bprop_masked_node
# A pytree.
_TreeT = TypeVar('_TreeT')


def mask_tree(tree: _TreeT, mask: Nested[bool]) -> _TreeT:
  """Replaces the leaves of `tree` by a `BpropMaskedNode` where `mask` is False.

  Masked leaves of `tree` stay masked; `mask` may be masked there too.
  """

  def choose(keep: bool | BpropMaskedNode, leaf: Any) -> Any:
    return leaf if keep is True else BpropMaskedNode()

  return jax.tree.map(choose, mask, tree, is_leaf=is_masked)


def merge_tree(tree: _TreeT, full: _TreeT) -> _TreeT:
  """Returns `tree` with its masked leaves taken from `full`."""
  return jax.tree.map(
    lambda leaf, other: other if is_masked(leaf) else leaf,
    tree,
    full,
    is_leaf=is_masked,
  )
