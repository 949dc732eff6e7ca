# SPDX-License-Identifier: Apache-2.0
"""Names of variable collections and PRNG streams, and their value types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flax import struct

from praxis.pytypes import JTensor

# Variable collections.
PARAMS = 'params'
NON_TRAINABLE = 'non_trainable'
AUX_LOSS = 'aux_loss'
SUMMARIES = 'summaries'
INTERMEDIATES = 'intermediates'
DECODE_CACHE = 'decoder_cache'
PREFIX_DECODE_CACHE = 'prefix_decoder_cache'
HYPER_PARAMS = 'hyper_params'
# Collections of wrapped flax modules: statistics, and logical axis names.
BATCH_STATS = 'batch_stats'
PARAMS_AXES = 'params_axes'
NON_PAX_VAR_COLLECTION = [BATCH_STATS, PARAMS_AXES]
# PRNG streams.
RANDOM = 'random'
NON_PAX_RNG_KEY = 'dropout'
DEFAULT_INIT_MUTABLE_LIST = [PARAMS, NON_TRAINABLE, *NON_PAX_VAR_COLLECTION]
# The mapped axis of pmap-style training.
PMAP_PARALLEL_AXIS_NAME = 'batch'

# fn(tensor, batch_dim, time_dim) for tensors of DECODE_CACHE; a dimension is -1
# if the tensor lacks it.
DecodeStateTransformFn = Callable[[JTensor, int, int], JTensor]


@struct.dataclass
class AuxLossStruct:
  """An auxiliary loss and its weight."""

  value: JTensor
  weight: JTensor


class WrappedHParams(struct.PyTreeNode):
  """The Config of a layer as a pytree without arrays."""

  meta: Any = struct.field(pytree_node=False)
