# SPDX-License-Identifier: Apache-2.0
"""State of Adafactor: factored or full second moments, quantized momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from praxis.optimizers import masked_trees
from praxis.pytypes import JTensor, Nested


class ShardedAdafactorState(NamedTuple):
  """The state, in trees like the variables; missing moments are masked."""

  # Number of updates so far. Checkpoints have this name, which hides the method
  # of tuples.
  count: JTensor  # type: ignore[assignment]
  # First moment and, if it is int8, its scale per column.
  m: Nested[JTensor]
  m_scale: Nested[JTensor]
  # Means of the squared gradients over one factored dimension and the other.
  vr: Nested[JTensor]
  vc: Nested[JTensor]
  # Second moment of the variables that are not factored.
  v: Nested[JTensor]
  # Summaries of each variable by name; empty if they are disabled.
  summaries: dict[str, Nested[JTensor]]


class Slot(NamedTuple):
  """The state of one variable; missing moments are `BpropMaskedNode`s."""

  m: Any = masked_trees.BpropMaskedNode()
  m_scale: Any = masked_trees.BpropMaskedNode()
  vr: Any = masked_trees.BpropMaskedNode()
  vc: Any = masked_trees.BpropMaskedNode()
  v: Any = masked_trees.BpropMaskedNode()


def pack(
  tree: Any,
  count: Any,
  slots: Sequence[Slot],
  leaf_summaries: Sequence[dict[str, Any]],
) -> ShardedAdafactorState:
  """Returns the state of all variables.

  Args:
    tree: the treedef of the variables.
    count: number of updates so far.
    slots: the state of each variable.
    leaf_summaries: the summaries of each variable.
  """
  columns = zip(*slots, strict=True) if slots else [()] * 5
  m, m_scale, vr, vc, v = (tree.unflatten(column) for column in columns)
  names = leaf_summaries[0] if leaf_summaries else ()
  summaries = {
    name: tree.unflatten([values[name] for values in leaf_summaries])
    for name in names
  }
  return ShardedAdafactorState(count, m, m_scale, vr, vc, v, summaries)


def unpack(tree: Any, state: ShardedAdafactorState) -> list[Slot]:
  """Returns the state of each variable."""
  columns = [tree.flatten_up_to(moment) for moment in state[1:6]]
  return [Slot(*slot) for slot in zip(*columns, strict=True)]
