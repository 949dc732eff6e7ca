# SPDX-License-Identifier: Apache-2.0
"""Beam search as functions; see `praxis.decoding.beams`."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array, Float, Int

from praxis.decoding import alignment, beams, loop
from praxis.decoding.beams import ComputeLogprobsFn as ComputeLogprobsFn
from praxis.decoding.beams import broadcast_beam_dim as broadcast_beam_dim
from praxis.decoding.beams import (
  default_compute_logprobs_fn as default_compute_logprobs_fn,
)
from praxis.decoding.beams import shuffle_state as shuffle_state
from praxis.decoding.hparams import BeamSearchHParams as BeamSearchHParams
from praxis.decoding.hypotheses import keep_best
from praxis.nested_map import NestedMap

# (ids [B, K, T], lengths [B, K], scores [B, K], logprobs [B, K, T])
GlobalBeam = tuple[Array, Array, Array, Array]


def update_global_beam(
  end_hyps: GlobalBeam, cur_hyps: GlobalBeam
) -> GlobalBeam:
  """Returns the best finished texts, as many as there were, old and new."""
  return keep_best(end_hyps, cur_hyps)


def beam_search(
  model: Any,
  extend_step_fn: loop.ExtendStepFn,
  fprop_fn: loop.FPropFn | None,
  transform_state_fn: loop.TransformStateFn,
  prefix_ids: Int[Array, 'B P'],
  prefix_paddings: Float[Array, 'B P'],
  beam_search_hparams: BeamSearchHParams,
  **options: Any,
) -> NestedMap:
  """Returns the best texts of each prompt; see `beams.search`.

  Args:
    model: bound, with a mutable DECODE_CACHE.
    extend_step_fn: does one step of it.
    fprop_fn: reads the prompts.
    transform_state_fn: changes its decode states.
    prefix_ids: the prompts, at the right end of their columns.
    prefix_paddings: 1 before them.
    beam_search_hparams: what is asked for.
    **options: compute_logprobs_fn, decode_loop_mesh_axes_transpose,
      model_var_pspecs, process_result_fn and lazy_broadcast_prefix_fn.
  """
  hparams = beam_search_hparams.clone()
  hparams.process_result_fn = options.pop('process_result_fn', None)
  search = beams.Search(
    steps=loop.Steps(
      extend_step=extend_step_fn,
      transform_state=transform_state_fn,
      lazy_broadcast_prefix=options.pop('lazy_broadcast_prefix_fn', None),
      fprop=fprop_fn,
    ),
    hparams=hparams,
    prefix_ids=prefix_ids,
    prefix_lengths=alignment.lengths_of(prefix_paddings),
    compute_logprobs=options.pop(
      'compute_logprobs_fn', default_compute_logprobs_fn
    ),
  )
  return beams.search(model, search, **options)


def beam_search_after_prefix_fprop(
  model: Any,
  extend_step_fn: loop.ExtendStepFn,
  transform_state_fn: loop.TransformStateFn,
  prefix_ids: Int[Array, 'B P'],
  prefix_paddings: Float[Array, 'B P'],
  beam_search_hparams: BeamSearchHParams,
  **options: Any,
) -> NestedMap:
  """As `beam_search`, of a model that has read its prompts."""
  return beam_search(
    model,
    extend_step_fn,
    None,
    transform_state_fn,
    prefix_ids,
    prefix_paddings,
    beam_search_hparams,
    **options,
  )
