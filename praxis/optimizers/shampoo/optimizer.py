# SPDX-License-Identifier: Apache-2.0
"""The configurations of Shampoo."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax

from praxis import base_layer, pax_fiddle
from praxis.optimizers import base_optimizer, sharded_transforms
from praxis.optimizers.shampoo import gradient_transform, hyperparams
from praxis.optimizers.shampoo.grafting import GraftingType
from praxis.pytypes import Nested

# {field: (its value when off, why it is not there and what to do instead)}
_REFUSED: dict[str, tuple[Any, str]] = {
  'cholesky': (False, 'statistics are kept whole; for precision use eigh=True'),
  'qr_based_root': (False, 'roots are exact already with eigh=True'),
  'frequent_directions': (
    False,
    'statistics are kept whole; compression_rank compresses preconditioners',
  ),
  'average_grad': (False, 'it belongs to frequent_directions'),
  'reuse_preconditioner': (False, 'it belongs to frequent_directions'),
}


class DistributedShampoo(base_optimizer.BaseOptimizer):
  """Shampoo for replicas, which share the work of taking roots.

  References:
    Gupta et al., https://arxiv.org/abs/1802.09568
    Anil et al., https://arxiv.org/abs/2002.09018
  """

  # Variables are cut in blocks of at most this in each dimension.
  block_size: int = 1024
  # Decay of the momentum, and of statistics and squares; 1 adds those up.
  beta1: float = 0.9
  beta2: float = 0.999
  # Added to the root of the squares, and to the diagonal of statistics.
  diagonal_epsilon: float = 1e-16
  matrix_epsilon: float = 1e-6
  weight_decay: float = 0.0
  # The first step that uses preconditioners.
  start_preconditioning_step: int = 101
  # Steps between roots, and between updates of the statistics.
  preconditioning_compute_steps: int = 100
  statistics_compute_steps: int = 1
  # Whose size the update has.
  graft_type: Any = GraftingType.ADAGRAD
  # Axis of the replicas.
  batch_axis_name: str = 'batch'
  # The mesh, for the sharded variant alone; None takes the number of devices
  # along the axes that the matrices are split over.
  mesh_axis_names: Sequence[str] | None = None
  num_devices_for_pjit: int | None = None
  nesterov: bool = True
  # Takes this root of all statistics; 0: twice the number of dimensions.
  exponent_override: int = 0
  # A root with an error of this much is not used.
  inverse_failure_threshold: float = 0.1
  # Momentum has (1 - beta1) of the new update instead of all of it.
  moving_average_for_momentum: bool = False
  # Variables with a dimension above this have no preconditioners.
  skip_preconditioning_dim_size_gt: int = 4096
  # Largest RMS of the update of RMSPROP grafting; None: not clipped.
  clip_by_scaled_gradient_norm: float | None = None
  # Merges neighbouring dimensions while they stay in the size further below.
  best_effort_shape_interpretation: bool = True
  # Mesh axes of the matrices: of [which matrix, row, column], kept and while
  # roots are taken. Axes that do not divide a size are left out.
  tensor_split_dims_mapping: Sequence[int] = pax_fiddle.instance_field(
    default_factory=lambda: [-1, 1, -1]
  )
  tensor_split_dims_mapping_for_inverse_pth_root: Sequence[int] = (
    pax_fiddle.instance_field(default_factory=lambda: [-1, 1, -1])
  )
  # Keeps momenta as int8 and, when not sharded, matrices as int16.
  best_effort_memory_usage_reduction: bool = False
  # matrix_epsilon is a fraction of a statistic's largest eigenvalue.
  relative_matrix_epsilon: bool = True
  # Not available.
  cholesky: bool = False
  qr_based_root: bool = False
  merge_small_dims_block_size: int = 4096
  # Treats this many of the largest eigenvalues apart before Newton iteration,
  # which is then shorter and more exact. They are found in at most so many
  # iterations; 0: as many as there are of them.
  lobpcg_topk_precondition: int = 0
  lobpcg_max_iter: int = 0
  # Variables with fewer dimensions have no preconditioners.
  skip_preconditioning_rank_lt: int = 1
  # Shows the largest error of roots, inverse_pth_root_errors/<variable>.
  summarize_training_metrics: bool = True
  # Applies weight decay, and the learning rate, after the momentum.
  decoupled_weight_decay_from_momentum: bool = True
  decoupled_learning_rate_from_momentum: bool = False
  # Takes roots by eigendecomposition instead of by Newton iteration.
  eigh: bool = False
  # Preconditioners keep this many of the largest eigenvalues of their
  # statistic, taken by eigendecomposition, and the mean of the others; 0: all.
  compression_rank: int = 0
  # Not available.
  frequent_directions: bool = False
  average_grad: bool = False
  reuse_preconditioner: bool = False

  def __post_init__(self) -> None:
    super().__post_init__()
    for field, (off, why) in _REFUSED.items():
      if getattr(self, field) != off:
        raise ValueError(
          f'{type(self).__name__}.{field}={getattr(self, field)} is not'
          f' available: {why}; set it to {off}'
        )
    by_eigh = self.eigh or self.compression_rank
    if self.lobpcg_topk_precondition and by_eigh:
      raise ValueError(
        f'{type(self).__name__}.lobpcg_topk_precondition mends Newton roots,'
        ' and eigh=True or compression_rank takes others; set one of them'
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
    """Returns a config for image classification."""
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
    """Returns a config for language models."""
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
    var_weight_hparams: Nested[base_layer.WeightHParams] | None,
  ) -> sharded_transforms.GradientTransformation:
    return gradient_transform.distributed_shampoo(
      learning_rate_fn, self._rule()
    )

  def _rule(self, **fields: Any) -> hyperparams.ShampooRule:
    names = {
      field.name for field in dataclasses.fields(hyperparams.ShampooRule)
    }
    mine = {name: getattr(self, name) for name in names if hasattr(self, name)}
    return hyperparams.ShampooRule(**{**mine, **fields})


class ShardedDistributedShampoo(DistributedShampoo):
  """Shampoo for SPMD: matrices are split over the mesh.

  A step uses the preconditioners of the step before, so that it need not wait
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
    """Returns a config for language models of 8B parameters and more."""
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
    self,
    learning_rate_fn: sharded_transforms.LearningRateFn,
    var_weight_hparams: Nested[base_layer.WeightHParams] | None,
  ) -> sharded_transforms.GradientTransformation:
    shapes = (hp.mesh_shape for hp in jax.tree.leaves(var_weight_hparams))
    placed = self._rule(
      sharded=True,
      mesh_shape=next(filter(None, shapes), None),
      mapping=self.tensor_split_dims_mapping,
      root_mapping=self.tensor_split_dims_mapping_for_inverse_pth_root,
    )
    if placed.mesh_shape and not self.mesh_axis_names:
      raise ValueError(
        'ShardedDistributedShampoo.mesh_axis_names must name the axes of the'
        f' mesh {list(placed.mesh_shape)}, got {self.mesh_axis_names}; give it'
        ' those of the model'
      )
    several = self.num_devices_for_pjit or math.lcm(
      *(
        hyperparams.axis_size(
          placed, hyperparams.axis_names(placed, mapping)[0]
        )
        for mapping in (placed.mapping, placed.root_mapping)
      )
    )
    return gradient_transform.distributed_shampoo(
      learning_rate_fn, dataclasses.replace(placed, multiple_of=several)
    )
