# SPDX-License-Identifier: Apache-2.0
"""Optimizers: how gradients become updates, and how their state is sharded."""

from __future__ import annotations

from praxis.optimizers.accumulation import (
  ShardedStaticAccumulator,
  sharded_static_accumulation,
)
from praxis.optimizers.adafactor import (
  ShardedAdafactor,
  ShardedAdafactorState,
  sharded_adafactor,
)
from praxis.optimizers.adagrad import Adagrad, ShardedAdagrad, sharded_adagrad
from praxis.optimizers.adam import Adam, AdamRule, adam_by_rule, sharded_adam
from praxis.optimizers.base import BaseOptimizer, Optimizer
from praxis.optimizers.lion import Lion, sharded_lion
from praxis.optimizers.masking import BpropMaskedNode
from praxis.optimizers.moments import (
  bias_corrected_decay as adafactor_decay_rate_adam,
)
from praxis.optimizers.moments import (
  power_decay as adafactor_decay_rate_pow,
)
from praxis.optimizers.moments import reduce_mean, reduce_rms
from praxis.optimizers.optax_optimizers import (
  Adafactor,
  Lamb,
  Lars,
  OptaxOptimizer,
)
from praxis.optimizers.quantized import to_float, to_quantized
from praxis.optimizers.sgd import Sgd, ShardedSgd, sharded_sgd
from praxis.optimizers.shampoo.grafting import GraftingType
from praxis.optimizers.shampoo.optimizer import (
  DistributedShampoo,
  ShardedDistributedShampoo,
)
from praxis.optimizers.transforms import (
  GradientTransformation,
  ShardedGradientTransformation,
  count_init_fn,
  count_init_partition_spec_fn,
  partition_params,
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
  'DistributedShampoo',
  'GradientTransformation',
  'GraftingType',
  'Lamb',
  'Lars',
  'Lion',
  'OptaxOptimizer',
  'Optimizer',
  'Sgd',
  'ShardedAdafactor',
  'ShardedAdafactorState',
  'ShardedAdagrad',
  'ShardedDistributedShampoo',
  'ShardedGradientTransformation',
  'ShardedSgd',
  'ShardedStaticAccumulator',
  'adafactor_decay_rate_adam',
  'adafactor_decay_rate_pow',
  'adam_by_rule',
  'apply_decoupled_weight_decay',
  'apply_ema_weights',
  'apply_ewc_regularization',
  'apply_lp_regularizer',
  'count_init_fn',
  'count_init_partition_spec_fn',
  'partition_params',
  'reduce_mean',
  'reduce_rms',
  'sharded_adafactor',
  'sharded_adagrad',
  'sharded_adam',
  'sharded_chain',
  'sharded_lion',
  'sharded_masked',
  'sharded_sgd',
  'sharded_static_accumulation',
  'to_float',
  'to_quantized',
]
