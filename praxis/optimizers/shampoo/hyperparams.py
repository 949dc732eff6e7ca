# SPDX-License-Identifier: Apache-2.0
"""The numbers of Shampoo's update, and where its matrices lie."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from praxis.optimizers.shampoo import block_partition, grafting


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShampooRule:
  """See `DistributedShampoo` for what the fields mean."""

  block_size: int
  beta1: float
  beta2: float
  diagonal_epsilon: float
  matrix_epsilon: float
  weight_decay: float
  start_preconditioning_step: int
  preconditioning_compute_steps: int
  statistics_compute_steps: int
  graft_type: grafting.GraftingType
  nesterov: bool
  exponent_override: int
  inverse_failure_threshold: float
  moving_average_for_momentum: bool
  skip_preconditioning_dim_size_gt: int
  clip_by_scaled_gradient_norm: float | None
  best_effort_shape_interpretation: bool
  best_effort_memory_usage_reduction: bool
  relative_matrix_epsilon: bool
  merge_small_dims_block_size: int
  skip_preconditioning_rank_lt: int
  summarize_training_metrics: bool
  decoupled_weight_decay_from_momentum: bool
  decoupled_learning_rate_from_momentum: bool
  eigh: bool
  lobpcg_topk_precondition: int
  lobpcg_max_iter: int
  compression_rank: int
  # The variant for SPMD: matrices are sharded, and used a step late, so that
  # their roots need not be waited for.
  sharded: bool = False
  # The number of matrices of a group is a multiple of this.
  multiple_of: int = 1
  # Mesh axes that matrices are split over, kept and while they are rooted.
  mapping: Sequence[int | str | None] = ()
  root_mapping: Sequence[int | str | None] = ()
  mesh_axis_names: Sequence[str] | None = None
  mesh_shape: Sequence[int] | None = None

  @property
  def matrix_dtype(self) -> str:
    """How statistics and preconditioners are kept."""
    reduced = self.best_effort_memory_usage_reduction and not self.sharded
    return 'int16' if reduced else 'float32'

  def is_compressed(self, size: int) -> bool:
    """Returns whether preconditioners of this size are kept at a low rank."""
    return 0 < self.compression_rank < size - 1

  def momentum_dtype(self, rank: int) -> str:
    """Returns how the momentum of a variable is kept."""
    reduced = self.best_effort_memory_usage_reduction and rank > 1
    return 'int8' if reduced else 'float32'

  def blocks_of(self, shape: Sequence[int]) -> block_partition.Blocks | None:
    """Returns how a variable is cut; None: it has no preconditioners."""
    if len(shape) < self.skip_preconditioning_rank_lt:
      return None
    if any(size > self.skip_preconditioning_dim_size_gt for size in shape):
      return None
    merged = tuple(shape)
    if self.best_effort_shape_interpretation:
      merged = block_partition.merge_small_dims(
        shape, self.merge_small_dims_block_size
      )
    return block_partition.Blocks(tuple(shape), merged, self.block_size)


@dataclasses.dataclass(frozen=True)
class Plan:
  """Which matrix of which group belongs to which block of which variable.

  Matrices of one size of which the same root is taken form a group, kept as one
  array: 's128p4' are those of 128 x 128 whose inverse fourth root is taken.
  """

  # How each variable is cut.
  cuts: tuple[block_partition.Blocks | None, ...]
  # For each variable, block by block and dimension by dimension, the group of
  # the matrix and its place there.
  places: tuple[tuple[tuple[str, int], ...], ...]
  # For each group the number of its matrices, their size, and the root.
  groups: dict[str, tuple[int, int, int]]


def make_plan(rule: ShampooRule, shapes: Sequence[Sequence[int]]) -> Plan:
  """Returns the plan for variables of these shapes."""
  used: dict[tuple[int, int], int] = {}
  places = []
  cuts = tuple(rule.blocks_of(shape) for shape in shapes)
  for cut in cuts:
    mine = []
    for sizes in cut.sizes if cut else ():
      power = rule.exponent_override or 2 * len(sizes)
      for size in sizes:
        index = used.get((size, power), 0)
        used[size, power] = index + 1
        mine.append((_group(size, power), index))
    places.append(tuple(mine))
  groups = {
    _group(size, power): (_round_up(n, rule.multiple_of), size, power)
    for (size, power), n in sorted(used.items())
  }
  return Plan(cuts, tuple(places), groups)


def fitting(
  rule: ShampooRule, mapping: Sequence[int | str | None], shape: Sequence[int]
) -> list[str | None]:
  """Returns the mesh axes of `mapping` that divide an array of `shape`."""
  return [
    name if size % axis_size(rule, name) == 0 else None
    for name, size in zip(axis_names(rule, mapping), shape, strict=True)
  ]


def axis_names(
  rule: ShampooRule, mapping: Sequence[int | str | None]
) -> list[str | None]:
  """Returns the names of the mesh axes that `mapping` has; -1 is None."""
  names = rule.mesh_axis_names or ()
  return [
    axis
    if isinstance(axis, str)
    else names[axis]
    if names and axis is not None and axis != -1
    else None
    for axis in mapping
  ]


def axis_size(rule: ShampooRule, name: str | None) -> int:
  """Returns the number of devices along a mesh axis, 1 for None."""
  if name is None or rule.mesh_shape is None:
    return 1
  return rule.mesh_shape[list(rule.mesh_axis_names).index(name)]


def _group(size: int, power: int) -> str:
  return f's{size}p{power}'


def _round_up(n: int, multiple_of: int) -> int:
  return math.ceil(n / multiple_of) * multiple_of
