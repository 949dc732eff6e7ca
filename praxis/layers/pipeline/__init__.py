# SPDX-License-Identifier: Apache-2.0
"""Pipeline parallelism over microbatches; this file only re-exports."""

from praxis.alias_names import module_getattr
from praxis.layers.pipeline.circular import CircularLayerwiseShardablePipelined
from praxis.layers.pipeline.layerwise_shardable import (
  LayerwiseShardablePipelined,
)

__getattr__ = module_getattr(__name__)

__all__ = ['CircularLayerwiseShardablePipelined', 'LayerwiseShardablePipelined']
