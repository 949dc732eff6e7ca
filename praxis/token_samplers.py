# SPDX-License-Identifier: Apache-2.0
"""Re-exports token samplers and logit filters under upstream's path."""

from praxis.alias_names import module_getattr
from praxis.decoding.logit_filters import (
  epsilon_mask_logits as epsilon_mask_logits,
)
from praxis.decoding.logit_filters import get_top_k as get_top_k
from praxis.decoding.logit_filters import top_p_mask_logits as top_p_mask_logits
from praxis.decoding.token_samplers import DUMMY_PRNG_KEY as DUMMY_PRNG_KEY
from praxis.decoding.token_samplers import (
  BaseLogitsSampler as BaseLogitsSampler,
)
from praxis.decoding.token_samplers import (
  BaseNextTokenSampler as BaseNextTokenSampler,
)
from praxis.decoding.token_samplers import (
  DefaultCategoricalLogitsSampler as DefaultCategoricalLogitsSampler,
)
from praxis.decoding.token_samplers import (
  DefaultNextTokenSampler as DefaultNextTokenSampler,
)
from praxis.decoding.token_samplers import (
  sample_from_top_k_and_top_p as sample_from_top_k_and_top_p,
)
from praxis.decoding.token_samplers import (
  sample_from_top_p_given_top_k as sample_from_top_p_given_top_k,
)

__getattr__ = module_getattr(__name__)
