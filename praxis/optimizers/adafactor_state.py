# SPDX-License-Identifier: Apache-2.0
"""What Adafactor keeps of variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from praxis.optimizers import masked_trees
from praxis.pytypes import JTensor, Nested


class ShardedAdafactorState(NamedTuple):
  """The state, in trees like the variables; what one lacks is masked."""

  # Number of updates so far.
  count: JTensor
  # First moment and, when it is int8, its scale per column.
  m: Nested[JTensor]
  m_scale: Nested[JTensor]
  # Means of the squared gradients over one factored dimension and the other.
  vr: Nested[JTensor]
  vc: Nested[JTensor]
  # Second moment of the variables that are not factored.
  v: Nested[JTensor]
  # What there is to show, by name, of each variable; empty unless asked for.
  summaries: dict[str, Nested[JTensor]]


class Slot(NamedTuple):
  """The state of one variable; `BpropMaskedNode` for what it lacks."""

  m: Any = masked_trees.BpropMaskedNode()
  m_scale: Any = masked_trees.BpropMaskedNode()
  vr: Any = masked_trees.BpropMaskedNode()
  vc: Any = masked_trees.BpropMaskedNode()
  v: Any = masked_trees.BpropMaskedNode()


def pack(
  tree: Any, count: Any, slots: Sequence[Slot], shown: Sequence[dict[str, Any]]
) -> ShardedAdafactorState:
  """Returns the state of all variables, and what there is to show of each."""
  columns = zip(*slots, strict=True) if slots else [()] * 5
  parts = [tree.unflatten(column) for column in columns]
  names = shown[0] if shown else ()
  summaries = {n: tree.unflatten([one[n] for one in shown]) for n in names}
  return ShardedAdafactorState(count, *parts, summaries)


def unpack(tree: Any, state: ShardedAdafactorState) -> list[Slot]:
  """Returns the state of each variable."""
  parts = [tree.flatten_up_to(part) for part in state[1:6]]
  return [Slot(*slot) for slot in zip(*parts, strict=True)]
