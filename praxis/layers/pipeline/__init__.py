# SPDX-License-Identifier: Apache-2.0
"""Pipelined layers: stages on devices of their own, fed by microbatches."""

from praxis.layers.pipeline.circular import CircularLayerwiseShardablePipelined
from praxis.layers.pipeline.layerwise_shardable import (
  LayerwiseShardablePipelined,
)

__all__ = ['CircularLayerwiseShardablePipelined', 'LayerwiseShardablePipelined']
