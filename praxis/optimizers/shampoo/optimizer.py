# SPDX-License-Identifier: Apache-2.0
"""Shampoo optimizers: replicated and sharded."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from praxis import base_layer, pax_fiddle, value_domains
from praxis.optimizers import base_optimizer, sharded_transforms
from praxis.optimizers.shampoo import gradient_transform, matrix_layout
from praxis.optimizers.shampoo.grafting import GraftingType
from praxis.optimizers.shampoo.hyperparams import ShampooHyperparams

# (the only supported value, reason and alternative) by field.
_UNSUPPORTED: dict[str, tuple[Any, str]] = {
  'cholesky': (
    False,
    'statistics are stored as full matrices; for precision use eigh=True',
  ),
  'qr_based_root': (False, 'roots are exact already with eigh=True'),
  'frequent_directions': (
    False,
    'statistics are stored as full matrices; compression_rank compresses'
    ' preconditioners',
  ),
  'average_grad': (False, 'it belongs to frequent_directions'),
  'reuse_preconditioner': (False, 'it belongs to frequent_directions'),
}


def _split_rows() -> list[int]:
  """Returns the sharding of rows over the second mesh axis."""
  return [-1, 1, -1]


class DistributedShampoo(base_optimizer.BaseOptimizer):
  """Shampoo with replicated state; replicas share the computation of roots.

  References:
    Gupta et al., https://arxiv.org/abs/1802.09568
    Anil et al., https://arxiv.org/abs/2002.09018
  """

  # Maximum size of blocks in each dimension.
  block_size: int = 1024
  # Decay of the momentum, and of statistics and squares; beta2 = 1 sums them.
  beta1: float = value_domains.field(0.9, ge=0.0, lt=1.0)
  beta2: float = value_domains.field(0.999, ge=0.0, le=1.0)
  # Added to the root of the squares, and to the diagonal of statistics.
  diagonal_epsilon: float = 1e-16
  matrix_epsilon: float = 1e-6
  weight_decay: float = 0.0
  # The first step that uses preconditioners.
  start_preconditioning_step: int = 101
  # Steps between computations of roots, and between updates of the statistics.
  preconditioning_compute_steps: int = value_domains.field(100, ge=1)
  statistics_compute_steps: int = value_domains.field(1, ge=1)
  # The optimizer that determines the norm of updates.
  graft_type: Any = GraftingType.ADAGRAD
  # The pmap axis of the replicas.
  batch_axis_name: str = 'batch'
  # The mesh, for the sharded variant; without a mesh of the model the state is
  # replicated. In the state the number of matrices of a group is a multiple of
  # num_devices_for_pjit; None: of the mesh axis that shards this dimension, so
  # that jobs continue where it is as large.
  mesh_axis_names: Sequence[str] | None = None
  num_devices_for_pjit: int | None = None
  nesterov: bool = True
  # The root of all statistics; 0: twice the number of dimensions.
  exponent_override: int = 0
  # Roots with at least this error are not used.
  inverse_failure_threshold: float = 0.1
  # Whether the momentum is a moving average, with (1 - beta1) of the update.
  moving_average_for_momentum: bool = False
  # Variables with a dimension above this have no preconditioners.
  skip_preconditioning_dim_size_gt: int = 4096
  # Maximum RMS of the update of RMSPROP grafting; None: no clipping.
  clip_by_scaled_gradient_norm: float | None = None
  # Whether to merge adjacent dimensions up to merge_small_dims_block_size.
  best_effort_shape_interpretation: bool = True
  # Shardings of groups of matrices, [matrix, row, column], in the state and
  # during the computation of roots. Axes that do not divide a size are ignored.
  tensor_split_dims_mapping: Sequence[int] = pax_fiddle.factory_field(
    _split_rows, _split_rows
  )
  tensor_split_dims_mapping_for_inverse_pth_root: Sequence[int] = (
    pax_fiddle.factory_field(_split_rows, _split_rows)
  )
  # Whether to store momenta as int8 and, if not sharded, matrices as int16.
  best_effort_memory_usage_reduction: bool = False
  # Whether matrix_epsilon is a fraction of the largest eigenvalue.
  relative_matrix_epsilon: bool = True
  # Not available.
  cholesky: bool = False
  qr_based_root: bool = False
  merge_small_dims_block_size: int = 4096
  # Number of largest eigenvalues to deflate before the Newton iteration, and
  # the maximum number of LOBPCG iterations; 0: as many as eigenvalues.
  lobpcg_topk_precondition: int = 0
  lobpcg_max_iter: int = 0
  # Variables with fewer dimensions have no preconditioners.
  skip_preconditioning_rank_lt: int = 1
  # Whether to write summaries of root errors,
  # inverse_pth_root_errors/<variable>.
  summarize_training_metrics: bool = True
  # Whether weight decay, and the learning rate, apply after the momentum.
  decoupled_weight_decay_from_momentum: bool = True
  decoupled_learning_rate_from_momentum: bool = False
  # Whether to compute roots by eigendecomposition, not Newton iteration.
  eigh: bool = False
  # Number of largest eigenvalues in a compressed preconditioner, which replaces
  # the others by their mean; 0: no compression.
  compression_rank: int = 0
  # Not available.
  frequent_directions: bool = False
  average_grad: bool = False
  reuse_preconditioner: bool = False

  def __post_init__(self) -> None:
    super().__post_init__()
    for field, (supported, reason) in _UNSUPPORTED.items():
      if getattr(self, field) != supported:
        raise ValueError(
          f'{type(self).__name__}.{field}={getattr(self, field)} is not'
          f' available: {reason}; set it to {supported}'
        )
    by_eigh = self.eigh or self.compression_rank
    if self.lobpcg_topk_precondition and by_eigh:
      raise ValueError(
        f'{type(self).__name__}.lobpcg_topk_precondition is for Newton roots,'
        ' which eigh=True and compression_rank do not use; set one of them'
      )
    if self.batch_axis_name != base_layer.PMAP_PARALLEL_AXIS_NAME:
      raise ValueError(
        'DistributedShampoo.batch_axis_name must be'
        f' {base_layer.PMAP_PARALLEL_AXIS_NAME!r}, the axis of replicas, got'
        f' {self.batch_axis_name!r}'
      )
    self.graft_type = GraftingType(self.graft_type)

  @classmethod
  def HParamsImageClassification(
    cls,
  ) -> pax_fiddle.Config[DistributedShampoo]:
    """Returns a Config for image classification."""
    return cls.config(
      block_size=128,
      beta1=0.9,
      beta2=0.95,
      weight_decay=1e-4,
      nesterov=True,
      preconditioning_compute_steps=1,
      statistics_compute_steps=1,
      graft_type=GraftingType.SGD,
    )

  @classmethod
  def HParamsLanguageModeling(cls) -> pax_fiddle.Config[DistributedShampoo]:
    """Returns a Config for language models."""
    return cls.config(
      block_size=1536,
      beta1=0.9,
      beta2=0.999,
      clip_gradient_norm_to_value=5.0,
      weight_decay=0.0,
      matrix_epsilon=1e-8,
      graft_type=GraftingType.RMSPROP_NORMALIZED,
      nesterov=False,
      exponent_override=0,
      start_preconditioning_step=51,
      preconditioning_compute_steps=50,
      skip_preconditioning_dim_size_gt=4096,
      moving_average_for_momentum=True,
      clip_by_scaled_gradient_norm=None,
    )

  def _get_raw_grad_transformation(
    self,
    learning_rate_fn: sharded_transforms.LearningRateFn,
  ) -> sharded_transforms.GradientTransformation:
    return gradient_transform.distributed_shampoo(
      learning_rate_fn, self._hyperparams()
    )

  def _hyperparams(self, **sharding: Any) -> ShampooHyperparams:
    """Returns the fields of this class that the transformation takes."""
    names = [field.name for field in dataclasses.fields(ShampooHyperparams)]
    values = {
      name: getattr(self, name) for name in names if hasattr(self, name)
    }
    return ShampooHyperparams(**{**values, **sharding})


class ShardedDistributedShampoo(DistributedShampoo):
  """Shampoo for SPMD, with matrices sharded over the mesh.

  A step uses the preconditioners of the previous step, so that it does not wait
  for roots.
  """

  def __post_init__(self) -> None:
    super().__post_init__()
    for field in (
      'tensor_split_dims_mapping',
      'tensor_split_dims_mapping_for_inverse_pth_root',
    ):
      mapping = getattr(self, field)
      if len(mapping) != 3:
        raise ValueError(
          f'ShardedDistributedShampoo.{field} must have 3 entries, for the'
          f' number of matrices, rows and columns, got {list(mapping)}'
        )

  @classmethod
  def HParamsLargeLanguageModeling(
    cls,
  ) -> pax_fiddle.Config[DistributedShampoo]:
    """Returns a Config for language models of 8B parameters and more."""
    return cls.config(
      block_size=4096,
      merge_small_dims_block_size=3 * 4096,
      skip_preconditioning_dim_size_gt=6 * 4096,
      graft_type=GraftingType.RMSPROP,
      clip_gradient_norm_to_value=1.0,
      clip_by_scaled_gradient_norm=1.0,
      beta1=0.9,
      beta2=0.99,
      weight_decay=0.0005,
      matrix_epsilon=1e-8,
      nesterov=False,
      exponent_override=0,
      mesh_axis_names=('replica', 'data', 'mdl'),
      tensor_split_dims_mapping=[-1, 1, 2],
      tensor_split_dims_mapping_for_inverse_pth_root=[1, -1, 2],
      start_preconditioning_step=51,
      preconditioning_compute_steps=50,
      summarize_training_metrics=False,
      moving_average_for_momentum=True,
    )

  def _get_raw_grad_transformation(
    self, learning_rate_fn: sharded_transforms.LearningRateFn
  ) -> sharded_transforms.GradientTransformation:
    shapes = (hp.mesh_shape for hp in jax.tree.leaves(self._var_weight_hparams))
    mesh_shape = next(filter(None, shapes), None)
    hyperparams = self._hyperparams(
      sharded=True,
      mesh_shape=mesh_shape,
      mesh_axis_names=self.mesh_axis_names if mesh_shape else None,
      mapping=self.tensor_split_dims_mapping,
      root_mapping=self.tensor_split_dims_mapping_for_inverse_pth_root,
    )
    if mesh_shape and not self.mesh_axis_names:
      raise ValueError(
        'ShardedDistributedShampoo.mesh_axis_names must name the axes of the'
        f' mesh {list(mesh_shape)}, got {self.mesh_axis_names}; use'
        ' those of the model'
      )
    state_axis = matrix_layout.axis_names(hyperparams, hyperparams.mapping)[0]
    multiple_of = self.num_devices_for_pjit or matrix_layout.axis_size(
      hyperparams, state_axis
    )
    return gradient_transform.distributed_shampoo(
      learning_rate_fn,
      dataclasses.replace(hyperparams, multiple_of=multiple_of),
    )
