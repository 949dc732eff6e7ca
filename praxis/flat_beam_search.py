# SPDX-License-Identifier: Apache-2.0
"""Re-exports `praxis.decoding.flat_beam_search` under upstream's path."""

from praxis.alias_names import module_getattr
from praxis.decoding.flat_beam_search import (
  flat_beam_search as flat_beam_search,
)
from praxis.decoding.flat_beam_search import (
  get_final_output_ids as get_final_output_ids,
)
from praxis.decoding.flat_beam_search import init_loop_var as init_loop_var
from praxis.decoding.flat_beam_search import post_process as post_process
from praxis.decoding.flat_beam_search import (
  update_beam_mask as update_beam_mask,
)
from praxis.decoding.flat_beam_search import (
  update_topk_scores_with_eos as update_topk_scores_with_eos,
)

__getattr__ = module_getattr(__name__)
