# SPDX-License-Identifier: Apache-2.0
"""Re-exports sampling and greedy decoding under upstream's path."""

from praxis.alias_names import module_getattr
from praxis.decoding.continuous_batching import (
  sample_decoding_step as sample_decoding_step,
)
from praxis.decoding.continuous_batching import (
  sample_init_decode_state as sample_init_decode_state,
)
from praxis.decoding.logit_filters import (
  epsilon_mask_logits as epsilon_mask_logits,
)
from praxis.decoding.logit_filters import get_top_k as get_top_k
from praxis.decoding.logit_filters import top_p_mask_logits as top_p_mask_logits
from praxis.decoding.sample_decode import greedy_decode as greedy_decode
from praxis.decoding.sample_decode import sample_decode as sample_decode
from praxis.decoding.sample_decode import (
  sample_decode_after_fprop as sample_decode_after_fprop,
)
from praxis.decoding.sample_decode import (
  vanilla_sample_decode as vanilla_sample_decode,
)
from praxis.decoding.sample_results import (
  reorder_with_indices as reorder_with_indices,
)
from praxis.decoding.sample_results import (
  sort_samples_by_scores as sort_samples_by_scores,
)
from praxis.decoding.sample_results import split_batch_dim as split_batch_dim
from praxis.decoding.sampling import (
  MAX_NUM_PER_TOKEN_LOGPROBS as MAX_NUM_PER_TOKEN_LOGPROBS,
)
from praxis.decoding.sequence_alignment import (
  right_align_prefix_ids as right_align_prefix_ids,
)
from praxis.decoding.sequence_alignment import (
  right_align_segment_position as right_align_segment_position,
)
from praxis.decoding.streaming import (
  StreamingResultCallback as StreamingResultCallback,
)
from praxis.decoding.termination_constraints import (
  BaseSampleTerminationConstraint as BaseSampleTerminationConstraint,
)
from praxis.decoding.token_samplers import DUMMY_PRNG_KEY as DUMMY_PRNG_KEY
from praxis.decoding.token_samplers import (
  BaseNextTokenSampler as BaseNextTokenSampler,
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
