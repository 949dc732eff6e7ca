# SPDX-License-Identifier: Apache-2.0
"""Chains of layers that pass their arguments on a stack."""

from praxis.layers.chain.chain import Chain as Chain
from praxis.layers.chain.chain import call_chain as call_chain
from praxis.layers.chain.chain import call_chained_layer as call_chained_layer
from praxis.layers.chain.chain import ensure_tuple as ensure_tuple
from praxis.layers.chain.chain_extensions import AddResidual as AddResidual
from praxis.layers.chain.chain_extensions import ApplyPadding as ApplyPadding
from praxis.layers.chain.chain_extensions import DictToArgs as DictToArgs
from praxis.layers.chain.chain_extensions import FullLike as FullLike
from praxis.layers.chain.chain_extensions import LogArgs as LogArgs
from praxis.layers.chain.chain_extensions import add_residual as add_residual
from praxis.layers.chain.chain_extensions import apply_padding as apply_padding
from praxis.layers.chain.chain_extensions import chain as chain
from praxis.layers.chain.chain_extensions import copy_n_times as copy_n_times
from praxis.layers.chain.chain_extensions import dict_to_args as dict_to_args
from praxis.layers.chain.chain_extensions import feed_forward as feed_forward
from praxis.layers.chain.chain_extensions import full_like as full_like
from praxis.layers.chain.chain_extensions import (
  kwargs_with_name as kwargs_with_name,
)
from praxis.layers.chain.chain_extensions import log_args as log_args
from praxis.layers.chain.chain_extensions import repeat as repeat
