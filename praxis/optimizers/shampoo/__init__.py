# SPDX-License-Identifier: Apache-2.0
"""Shampoo (arXiv:1802.09568): a preconditioner per dimension; re-exports."""

from __future__ import annotations

from praxis.optimizers.shampoo.gradient_transform import distributed_shampoo
from praxis.optimizers.shampoo.grafting import GraftingType
from praxis.optimizers.shampoo.hyperparams import ShampooHyperparams
from praxis.optimizers.shampoo.optimizer import (
  DistributedShampoo,
  ShardedDistributedShampoo,
)

__all__ = [
  'DistributedShampoo',
  'GraftingType',
  'ShampooHyperparams',
  'ShardedDistributedShampoo',
  'distributed_shampoo',
]
