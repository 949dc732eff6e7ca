# SPDX-License-Identifier: Apache-2.0
"""Parameters of the sparsity of a layer's weights."""

from __future__ import annotations

import dataclasses
import enum

from praxis import pax_fiddle
from praxis.alias_names import module_getattr
from praxis.layers.quantization.sparsity import sparsity_modes

__getattr__ = module_getattr(__name__)

BaseSparsityScheduleMode = sparsity_modes.BaseSparsityScheduleMode
InferenceMode = sparsity_modes.InferenceMode


@enum.unique
class SparsityScore(enum.StrEnum):
  """The importance score: |w|, or |w| times the sum of |inputs|."""

  MAGNITUDE = 'magnitude'
  ACTIVATION_WEIGHTED = 'activation_weighted'


@enum.unique
class SparsityType(enum.StrEnum):
  """The pattern: N of every M weights, unstructured, or whole channels."""

  STRUCTURED_NM = 'structured_nm'
  UNSTRUCTURED = 'unstructured'
  CHANNELWISE_PRUNING = 'channelwise_pruning'


@enum.unique
class SparsityOrder(enum.StrEnum):
  """The direction of adjacent weights: column (contracted) or row."""

  C = 'C'
  R = 'R'


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class PolynomialDecayParams:
  """A polynomial schedule of the percentage of zeros.

  References: To prune, or not to prune, https://arxiv.org/abs/1710.01878
  """

  # Percentages at begin_step and from end_step on.
  initial_sparsity: float = 10.0
  final_sparsity: float = 70.0
  # First and last step of the schedule; nothing is pruned before.
  begin_step: int = 0
  end_step: int = 50_000
  # Exponent of the polynomial; higher values prune earlier.
  exponent: float = 3.0

  def __post_init__(self) -> None:
    if self.end_step <= self.begin_step:
      raise ValueError(
        f'end_step must be greater than begin_step={self.begin_step}, got '
        f'{self.end_step}; without a schedule, set prune_rate'
      )


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class WeightSparsityParams:
  """Pruning rate, and the treatment of pruned weights.

  References:
    Learning N:M fine-grained structured sparse neural networks from scratch,
    https://arxiv.org/abs/2102.04010 (SR-STE)
    Training recipe for N:M structured sparsity with decaying pruning mask,
    https://arxiv.org/abs/2209.07617
  """

  # (N, M); a percentage; for channels a fraction; None: no pruning.
  prune_rate: None | float | tuple[int, int]
  # Without effect, as in upstream; both exclude sparse_ste.
  structure_decay: bool = False
  mask_decay_weight: float = 0.0
  # Whether to use SR-STE, and the weight of its decay of pruned weights.
  sparse_ste: bool = False
  sparse_ste_weight: float = 0.0002
  # Distance of the M weights; 0: adjacent.
  offset: int = 0
  # The value of pruned weights, and whether it is trainable.
  pruned_value: float = 0.0
  pruned_value_trainable: bool = False

  def __post_init__(self) -> None:
    for name in ('mask_decay_weight', 'sparse_ste_weight', 'offset'):
      if getattr(self, name) < 0:
        raise ValueError(
          f'{name} must not be negative, got {getattr(self, name)}'
        )
    if self.sparse_ste and self.mask_decay_weight != 0.0:
      raise ValueError(
        'SR-STE only works with non-decaying mask, got sparse_ste=True and '
        f'mask_decay_weight={self.mask_decay_weight}'
      )
    if self.sparse_ste and self.structure_decay:
      raise ValueError(
        'SR-STE only works with non-decaying sparse structure, got '
        'sparse_ste=True and structure_decay=True'
      )


@pax_fiddle.register_dataclass
@dataclasses.dataclass
class SparsityHParams:
  """Sparsity of the weights of a layer."""

  sparsity_type: SparsityType = SparsityType.STRUCTURED_NM
  weight_params: WeightSparsityParams | None = None
  mode: BaseSparsityScheduleMode = dataclasses.field(
    default_factory=InferenceMode
  )
  score: SparsityScore = SparsityScore.MAGNITUDE
  # Indices of the sparse layers; None: all.
  sparsified_layers: list[int] | None = None
  # Schedule of the percentage for UNSTRUCTURED; replaces prune_rate.
  polynomial_decay_schedule: PolynomialDecayParams | None = None
  order: SparsityOrder = SparsityOrder.C
  # Whether to track the fraction of the mask that changes.
  track_sad_metric: bool = False
  # 'BINARY_MASK' or 'PROB_MASK': learned N:M masks.
  topk_estimator_type: str | None = None
  # The dimension of channels.
  channelwise_pruning_dim: int = -1
  # Number of adjacent weights that are pruned together, for STRUCTURED_NM.
  block_size: int = 0

  def __post_init__(self) -> None:
    if self.weight_params is None:
      return
    is_structured = self.sparsity_type == SparsityType.STRUCTURED_NM
    rate = self.weight_params.prune_rate
    expected = tuple if is_structured else float
    if rate is not None and not isinstance(rate, expected):
      raise ValueError(
        f'prune_rate must be None or a {expected.__name__} with '
        f'{self.sparsity_type}, got {rate!r}'
      )
    if self.weight_params.sparse_ste and not is_structured:
      raise ValueError(
        'SR-STE only works with structured sparsity (STRUCTURED_NM), got '
        f'sparse_ste=True with {self.sparsity_type}'
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
