# SPDX-License-Identifier: Apache-2.0
"""What can be set of the sparsity of a layer's weights."""

from __future__ import annotations

import dataclasses
import enum

from praxis import pax_fiddle
from praxis.layers.quantization.sparsity import sparsity_modes

BaseSparsityScheduleMode = sparsity_modes.BaseSparsityScheduleMode
InferenceMode = sparsity_modes.InferenceMode


@enum.unique
class SparsityScore(enum.StrEnum):
  """What decides which weights are kept: they alone, or times their inputs."""

  MAGNITUDE = 'magnitude'
  ACTIVATION_WEIGHTED = 'activation_weighted'


@enum.unique
class SparsityType(enum.StrEnum):
  """Which weights are pruned together: of M, N are kept; any; or channels."""

  STRUCTURED_NM = 'structured_nm'
  UNSTRUCTURED = 'unstructured'
  CHANNELWISE_PRUNING = 'channelwise_pruning'


@enum.unique
class SparsityOrder(enum.StrEnum):
  """Where the M weights are side by side: in a column (contracted) or a row."""

  C = 'C'
  R = 'R'


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class PolynomialDecayParams:
  """A percentage of zeros that grows with the steps.

  References: To prune, or not to prune, https://arxiv.org/abs/1710.01878
  """

  # Percentages at the first and from the last step on.
  initial_sparsity: float = 10.0
  final_sparsity: float = 70.0
  # Those steps; nothing is pruned before.
  begin_step: int = 0
  end_step: int = 50_000
  # The higher, the sooner most is pruned.
  exponent: float = 3.0


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class WeightSparsityParams:
  """How many weights are pruned, and what becomes of them.

  References:
    Learning N:M fine-grained structured sparse neural networks from scratch,
    https://arxiv.org/abs/2102.04010 (SR-STE)
    Training recipe for N:M structured sparsity with decaying pruning mask,
    https://arxiv.org/abs/2209.07617
  """

  # (N, M); or a percentage, for channels a part; None prunes nothing.
  prune_rate: None | float | tuple[int, int]
  # Whether the structure, or by how much the mask, decays. Neither goes with
  # sparse_ste.
  structure_decay: bool = False
  mask_decay_weight: float = 0.0
  # Whether gradients of pruned weights also pull them to 0, and how much.
  sparse_ste: bool = False
  sparse_ste_weight: float = 0.0002
  # How far apart the M weights are; 0 for side by side.
  offset: int = 0
  # What pruned weights become, and whether that is learned.
  pruned_value: float = 0.0
  pruned_value_trainable: bool = False

  def __post_init__(self) -> None:
    for name in ('mask_decay_weight', 'sparse_ste_weight', 'offset'):
      if getattr(self, name) < 0:
        raise ValueError(
          f'{name} must not be negative, got {getattr(self, name)}'
        )
    decays = self.structure_decay or self.mask_decay_weight != 0.0
    if self.sparse_ste and decays:
      raise ValueError(
        'sparse_ste=True needs a mask that does not decay, got '
        f'structure_decay={self.structure_decay} and '
        f'mask_decay_weight={self.mask_decay_weight}'
      )


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class SparsityHParams:
  """How the weights of a layer are sparse."""

  sparsity_type: SparsityType = SparsityType.STRUCTURED_NM
  weight_params: WeightSparsityParams | None = None
  mode: BaseSparsityScheduleMode = dataclasses.field(
    default_factory=InferenceMode
  )
  score: SparsityScore = SparsityScore.MAGNITUDE
  # Indices of the layers that are sparse; None for all.
  sparsified_layers: list[int] | None = None
  # For UNSTRUCTURED, in place of the percentage.
  polynomial_decay_schedule: PolynomialDecayParams | None = None
  order: SparsityOrder = SparsityOrder.C
  # Whether to record which part of the mask has changed.
  track_sad_metric: bool = False
  # 'BINARY_MASK' or 'PROB_MASK' learn which N of M weights are kept.
  topk_estimator_type: str | None = None
  # The dimension whose entries are channels.
  channelwise_pruning_dim: int = -1
  # How many weights side by side are pruned together, for STRUCTURED_NM.
  block_size: int = 0

  def __post_init__(self) -> None:
    if self.weight_params is None:
      return
    is_structured = self.sparsity_type == SparsityType.STRUCTURED_NM
    rate, wanted = self.weight_params.prune_rate, float
    if is_structured:
      wanted = tuple
    if rate is not None and not isinstance(rate, wanted):
      raise ValueError(
        f'prune_rate must be None or a {wanted.__name__} with '
        f'{self.sparsity_type}, got {rate!r}'
      )
    if self.weight_params.sparse_ste and not is_structured:
      raise ValueError(
        f'sparse_ste=True needs STRUCTURED_NM, got {self.sparsity_type}'
      )
    if self.order not in ('C', 'R'):
      raise ValueError(f"order must be 'C' or 'R', got {self.order!r}")
    if self.block_size < 0 or (self.block_size and not is_structured):
      raise ValueError(
        'block_size must be 0, or positive with STRUCTURED_NM, got '
        f'{self.block_size} with {self.sparsity_type}'
      )
    if self.topk_estimator_type not in (None, 'BINARY_MASK', 'PROB_MASK'):
      raise ValueError(
        "topk_estimator_type must be 'BINARY_MASK', 'PROB_MASK' or None, got "
        f'{self.topk_estimator_type!r}'
      )
