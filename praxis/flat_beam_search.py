# SPDX-License-Identifier: Apache-2.0
"""Flat beam search as functions; see `praxis.decoding.flat_beams`."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array, Float, Int

from praxis.decoding import alignment, flat_beams, hparams, loop
from praxis.decoding.flat_beams import (
  get_final_output_ids as get_final_output_ids,
)
from praxis.decoding.flat_beams import init_loop_var as init_loop_var
from praxis.decoding.flat_beams import post_process as post_process
from praxis.decoding.flat_beams import update_beam_mask as update_beam_mask
from praxis.decoding.flat_beams import (
  update_topk_scores_with_eos as update_topk_scores_with_eos,
)
from praxis.nested_map import NestedMap


def flat_beam_search(
  model: Any,
  extend_step_fn: loop.ExpandedExtendStepFn,
  prefix_ids: Int[Array, 'B P'],
  prefix_paddings: Float[Array, 'B P'],
  seq_len: int,
  beam_size: int,
  **options: Any,
) -> NestedMap:
  """Returns the best texts of each prompt, which the model has read.

  Args:
    model: bound, with a mutable DECODE_CACHE. Its states have room for
      beam_size times the number of steps, from the last token of the prompts
      on, which is read again.
    extend_step_fn: fn(model, ids [B, K], segment_pos [B, K], state) returns
      logits [B, K, V] of what state.atten_mask [B, 1, K, S] shows.
    prefix_ids: the prompts, at the right end of their columns.
    prefix_paddings: 1 before them.
    seq_len: number of columns of the result.
    beam_size: how many texts are looked for.
    **options: fprop_dtype, max_decode_steps (up to seq_len when absent), eos_id
      and length_norm_alpha.

  Returns:
    What `praxis.decoding.beams.search` does.
  """
  dtype = options.pop('fprop_dtype', 'float32')
  steps = options.pop('max_decode_steps', None)
  steps = steps or seq_len - prefix_ids.shape[1]
  search = flat_beams.FlatSearch(
    steps=loop.Steps(extend_step=extend_step_fn),
    hparams=hparams.FlatBeamSearchHParams(
      beam_size=beam_size, max_decode_steps=steps, **options
    ),
    prefix_ids=prefix_ids,
    prefix_lengths=alignment.lengths_of(prefix_paddings),
    dtype=dtype,
  )
  return search.result(flat_beams.run(model, search))
