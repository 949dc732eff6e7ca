# SPDX-License-Identifier: Apache-2.0
"""Re-exports `praxis.optimizers.prefix_vectorization` under upstream's path."""

from __future__ import annotations

from praxis.alias_names import module_getattr
from praxis.optimizers.prefix_vectorization import (
  NO_PREFIX_KEY,
  get_transformations_with_vectorized_repeat_prefix,
  has_no_prefix,
  partition_params,
)

__getattr__ = module_getattr(__name__)

__all__ = [
  'NO_PREFIX_KEY',
  'get_transformations_with_vectorized_repeat_prefix',
  'has_no_prefix',
  'partition_params',
]
