# SPDX-License-Identifier: Apache-2.0
"""Shampoo: gradients preconditioned by one matrix per dimension."""

from __future__ import annotations

from praxis.optimizers.shampoo.gradient_transform import distributed_shampoo
from praxis.optimizers.shampoo.grafting import GraftingType
from praxis.optimizers.shampoo.hyperparams import ShampooRule
from praxis.optimizers.shampoo.optimizer import (
  DistributedShampoo,
  ShardedDistributedShampoo,
)

__all__ = [
  'DistributedShampoo',
  'GraftingType',
  'ShampooRule',
  'ShardedDistributedShampoo',
  'distributed_shampoo',
]
