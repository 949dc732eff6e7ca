# SPDX-License-Identifier: Apache-2.0
"""Re-exports `praxis.decoding.beam_search` under upstream's path."""

from praxis.alias_names import module_getattr
from praxis.decoding.beam_search import ComputeLogprobsFn as ComputeLogprobsFn
from praxis.decoding.beam_search import GlobalBeam as GlobalBeam
from praxis.decoding.beam_search import beam_search as beam_search
from praxis.decoding.beam_search import (
  beam_search_after_prefix_fprop as beam_search_after_prefix_fprop,
)
from praxis.decoding.beam_search import broadcast_beam_dim as broadcast_beam_dim
from praxis.decoding.beam_search import (
  default_compute_logprobs_fn as default_compute_logprobs_fn,
)
from praxis.decoding.beam_search import shuffle_state as shuffle_state
from praxis.decoding.beam_search import update_global_beam as update_global_beam
from praxis.decoding.hparams import BeamSearchHParams as BeamSearchHParams

__getattr__ = module_getattr(__name__)
