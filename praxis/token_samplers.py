# SPDX-License-Identifier: Apache-2.0
"""Samplers of tokens, by the names that users know; see `praxis.decoding`."""

from praxis.decoding.filters import epsilon_mask_logits as epsilon_mask_logits
from praxis.decoding.filters import get_top_k as get_top_k
from praxis.decoding.filters import top_p_mask_logits as top_p_mask_logits
from praxis.decoding.samplers import DUMMY_PRNG_KEY as DUMMY_PRNG_KEY
from praxis.decoding.samplers import BaseLogitsSampler as BaseLogitsSampler
from praxis.decoding.samplers import (
  BaseNextTokenSampler as BaseNextTokenSampler,
)
from praxis.decoding.samplers import (
  DefaultCategoricalLogitsSampler as DefaultCategoricalLogitsSampler,
)
from praxis.decoding.samplers import (
  DefaultNextTokenSampler as DefaultNextTokenSampler,
)
from praxis.decoding.samplers import (
  sample_from_top_k_and_top_p as sample_from_top_k_and_top_p,
)
from praxis.decoding.samplers import (
  sample_from_top_p_given_top_k as sample_from_top_p_given_top_k,
)
