# SPDX-License-Identifier: Apache-2.0
"""Shampoo: gradients preconditioned by one matrix per dimension."""

from __future__ import annotations

from praxis.optimizers.shampoo.grafting import GraftingType
from praxis.optimizers.shampoo.optimizer import (
  DistributedShampoo,
  ShardedDistributedShampoo,
)
from praxis.optimizers.shampoo.rule import ShampooRule
from praxis.optimizers.shampoo.transform import distributed_shampoo

__all__ = [
  'DistributedShampoo',
  'GraftingType',
  'ShampooRule',
  'ShardedDistributedShampoo',
  'distributed_shampoo',
]
