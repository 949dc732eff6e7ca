# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters of Shampoo."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from praxis.optimizers.shampoo import block_partition, grafting


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShampooHyperparams:
  """The fields are those of `DistributedShampoo` unless commented."""

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
  # The SPMD variant: matrices are sharded, and preconditioners are used one
  # step late, so that a step does not wait for their roots.
  sharded: bool = False
  # The number of matrices in a group is a multiple of this.
  multiple_of: int = 1
  # Shardings of the stored matrices, and of the computation of their roots.
  mapping: Sequence[int | str | None] = ()
  root_mapping: Sequence[int | str | None] = ()
  mesh_axis_names: Sequence[str] | None = None
  mesh_shape: Sequence[int] | None = None

  @property
  def matrix_dtype(self) -> str:
    """Storage dtype of statistics and preconditioners."""
    reduced = self.best_effort_memory_usage_reduction and not self.sharded
    return 'int16' if reduced else 'float32'

  def is_compressed(self, size: int) -> bool:
    """Whether preconditioners of this size are stored at a low rank."""
    return 0 < self.compression_rank < size - 1

  def momentum_dtype(self, rank: int) -> str:
    """Returns the storage dtype of the momentum of a variable."""
    reduced = self.best_effort_memory_usage_reduction and rank > 1
    return 'int8' if reduced else 'float32'

  def partition(
    self, shape: Sequence[int]
  ) -> block_partition.BlockPartition | None:
    """Returns the blocks of a variable; None: it has no preconditioners."""
    if len(shape) < self.skip_preconditioning_rank_lt or 0 in shape:
      return None
    if any(size > self.skip_preconditioning_dim_size_gt for size in shape):
      return None
    merged = tuple(shape)
    if self.best_effort_shape_interpretation:
      merged = block_partition.merge_small_dims(
        shape, self.merge_small_dims_block_size
      )
    return block_partition.BlockPartition(tuple(shape), merged, self.block_size)
