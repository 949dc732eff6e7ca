# SPDX-License-Identifier: Apache-2.0
"""Optimizers: how gradients become updates, and how their state is sharded."""

from __future__ import annotations

from praxis.optimizers.adafactor import ShardedAdafactor, ShardedAdafactorState
from praxis.optimizers.adagrad import Adagrad, ShardedAdagrad, sharded_adagrad
from praxis.optimizers.adam import Adam, AdamRule, sharded_adam
from praxis.optimizers.base import BaseOptimizer, Optimizer
from praxis.optimizers.lion import Lion
from praxis.optimizers.masking import BpropMaskedNode
from praxis.optimizers.optax_optimizers import (
  Adafactor,
  Lamb,
  Lars,
  OptaxOptimizer,
)
from praxis.optimizers.sgd import Sgd, ShardedSgd, sharded_sgd
from praxis.optimizers.transforms import (
  GradientTransformation,
  ShardedGradientTransformation,
  sharded_chain,
  sharded_masked,
)
from praxis.optimizers.wrappers import (
  apply_decoupled_weight_decay,
  apply_ema_weights,
  apply_ewc_regularization,
  apply_lp_regularizer,
)

__all__ = [
  'Adafactor',
  'Adagrad',
  'Adam',
  'AdamRule',
  'BaseOptimizer',
  'BpropMaskedNode',
  'GradientTransformation',
  'Lamb',
  'Lars',
  'Lion',
  'OptaxOptimizer',
  'Optimizer',
  'Sgd',
  'ShardedAdafactor',
  'ShardedAdafactorState',
  'ShardedAdagrad',
  'ShardedGradientTransformation',
  'ShardedSgd',
  'apply_decoupled_weight_decay',
  'apply_ema_weights',
  'apply_ewc_regularization',
  'apply_lp_regularizer',
  'sharded_adagrad',
  'sharded_adam',
  'sharded_chain',
  'sharded_masked',
  'sharded_sgd',
]
