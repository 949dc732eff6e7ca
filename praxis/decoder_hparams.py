# SPDX-License-Identifier: Apache-2.0
"""Re-exports `praxis.decoding.hparams` under upstream's path."""

from praxis.alias_names import module_getattr
from praxis.decoding.hparams import BeamSearchHParams as BeamSearchHParams
from praxis.decoding.hparams import DecoderHParams as DecoderHParams
from praxis.decoding.hparams import (
  FlatBeamSearchHParams as FlatBeamSearchHParams,
)
from praxis.decoding.hparams import GreedyDecoderHParams as GreedyDecoderHParams
from praxis.decoding.hparams import SampleDecoderHParams as SampleDecoderHParams

__getattr__ = module_getattr(__name__)
