# SPDX-License-Identifier: Apache-2.0
"""Layout and sharding of Shampoo's matrices, grouped by size and root."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from praxis.optimizers.shampoo import block_partition
from praxis.optimizers.shampoo.hyperparams import ShampooHyperparams


@dataclasses.dataclass(frozen=True)
class MatrixLayout:
  """Assigns a matrix of a group to each dimension of each block.

  Matrices of one size with the same root form a group, which is one array:
  's128p4' has the 128 x 128 matrices whose inverse fourth root is computed.
  """

  # The blocks of each variable; None: no preconditioners.
  partitions: tuple[block_partition.BlockPartition | None, ...]
  # For each variable, by block and dimension: the group of the matrix and its
  # index there.
  indices: tuple[tuple[tuple[str, int], ...], ...]
  # (number of matrices, size, root) of each group.
  groups: dict[str, tuple[int, int, int]]


def make_layout(
  hyperparams: ShampooHyperparams, shapes: Sequence[Sequence[int]]
) -> MatrixLayout:
  """Returns the layout for variables of these shapes."""
  counts: dict[tuple[int, int], int] = {}
  indices = []
  partitions = tuple(hyperparams.partition(shape) for shape in shapes)
  for partition in partitions:
    variable_indices = []
    for sizes in partition.sizes if partition else ():
      power = hyperparams.exponent_override or 2 * len(sizes)
      for size in sizes:
        index = counts.get((size, power), 0)
        counts[size, power] = index + 1
        variable_indices.append((_group(size, power), index))
    indices.append(tuple(variable_indices))
  groups = {
    _group(size, power): (_round_up(n, hyperparams.multiple_of), size, power)
    for (size, power), n in sorted(counts.items())
  }
  return MatrixLayout(partitions, tuple(indices), groups)


def dividing_axes(
  hyperparams: ShampooHyperparams,
  mapping: Sequence[int | str | None],
  shape: Sequence[int],
) -> list[str | None]:
  """Returns the mesh axes of `mapping` that divide `shape`, None elsewhere."""
  return [
    name if size % axis_size(hyperparams, name) == 0 else None
    for name, size in zip(axis_names(hyperparams, mapping), shape, strict=True)
  ]


def axis_names(
  hyperparams: ShampooHyperparams, mapping: Sequence[int | str | None]
) -> list[str | None]:
  """Returns the names of the mesh axes in `mapping`, with None for -1."""
  names = hyperparams.mesh_axis_names or ()
  return [
    axis
    if isinstance(axis, str)
    else names[axis]
    if names and axis is not None and axis != -1
    else None
    for axis in mapping
  ]


def axis_size(hyperparams: ShampooHyperparams, name: str | None) -> int:
  """Returns the number of devices along a mesh axis, 1 for None."""
  shape, names = hyperparams.mesh_shape, hyperparams.mesh_axis_names
  if name is None or shape is None or names is None:
    return 1
  return shape[list(names).index(name)]


def _group(size: int, power: int) -> str:
  return f's{size}p{power}'


def _round_up(n: int, multiple_of: int) -> int:
  return math.ceil(n / multiple_of) * multiple_of
