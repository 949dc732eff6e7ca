# SPDX-License-Identifier: Apache-2.0
"""Optimizers and gradient transformations; this module re-exports."""

from __future__ import annotations

from praxis.alias_names import module_getattr
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
from praxis.optimizers.adam import (
  Adam,
  AdamHyperparams,
  adam_transform,
  sharded_adam,
)
from praxis.optimizers.base_optimizer import BaseOptimizer, Optimizer
from praxis.optimizers.lion import Lion, sharded_lion
from praxis.optimizers.masked_trees import BpropMaskedNode
from praxis.optimizers.muon import Muon
from praxis.optimizers.optax_optimizers import (
  Adafactor,
  Lamb,
  Lars,
  OptaxOptimizer,
)
from praxis.optimizers.quantized_moments import to_float, to_quantized
from praxis.optimizers.regularization import (
  apply_decoupled_weight_decay,
  apply_ema_weights,
  apply_ewc_regularization,
  apply_lp_regularizer,
)
from praxis.optimizers.sgd import Sgd, ShardedSgd, sharded_sgd
from praxis.optimizers.shampoo.grafting import GraftingType
from praxis.optimizers.shampoo.optimizer import (
  DistributedShampoo,
  ShardedDistributedShampoo,
)
from praxis.optimizers.sharded_transforms import (
  GeneralGradientTransformation,
  GradientTransformation,
  ShardedGradientTransformation,
  TransformInitPartitionSpecFn,
  count_init_fn,
  count_init_partition_spec_fn,
  partition_params,
  sharded_chain,
  sharded_masked,
)
from praxis.optimizers.update_math import (
  bias_corrected_decay as adafactor_decay_rate_adam,
)
from praxis.optimizers.update_math import (
  power_decay as adafactor_decay_rate_pow,
)
from praxis.optimizers.update_math import reduce_mean, reduce_rms

__getattr__ = module_getattr(__name__)

__all__ = [
  'Adafactor',
  'Adagrad',
  'Adam',
  'AdamHyperparams',
  'BaseOptimizer',
  'BpropMaskedNode',
  'DistributedShampoo',
  'GradientTransformation',
  'GraftingType',
  'Lamb',
  'Lars',
  'Lion',
  'Muon',
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
  'TransformInitPartitionSpecFn',
  'adafactor_decay_rate_adam',
  'adafactor_decay_rate_pow',
  'adam_transform',
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
