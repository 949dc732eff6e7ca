# SPDX-License-Identifier: Apache-2.0
"""Pipeline parallelism over microbatches; this file only re-exports."""

from praxis.layers.pipeline.circular import CircularLayerwiseShardablePipelined
from praxis.layers.pipeline.layerwise_shardable import (
  LayerwiseShardablePipelined,
)

__all__ = ['CircularLayerwiseShardablePipelined', 'LayerwiseShardablePipelined']
