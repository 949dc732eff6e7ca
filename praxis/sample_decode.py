# SPDX-License-Identifier: Apache-2.0
"""Sampling and greedy decoding as functions; see `praxis.decoding.sampling`.

The first two work on a bound model and functions of it: extend_step_fn(model,
ids, segment_pos[, state]), transform_state_fn(model, fn),
lazy_broadcast_prefix_fn(model, num_samples, length), fprop_fn(model, ids,
paddings). With fprop_for_prefix, prefix_ids stand at the right end of their
`max_prefix_len` columns.
"""

from __future__ import annotations

from typing import Any

import jax
from jaxtyping import Array, Float, Int

from praxis.decoding import alignment, loop, samplers, sampling
from praxis.decoding.alignment import (
  right_align_prefix_ids as right_align_prefix_ids,
)
from praxis.decoding.alignment import (
  right_align_segment_position as right_align_segment_position,
)
from praxis.decoding.constraints import (
  BaseSampleTerminationConstraint as BaseSampleTerminationConstraint,
)
from praxis.decoding.continuous_batching import (
  sample_decoding_step as sample_decoding_step,
)
from praxis.decoding.continuous_batching import (
  sample_init_decode_state as sample_init_decode_state,
)
from praxis.decoding.filters import epsilon_mask_logits as epsilon_mask_logits
from praxis.decoding.filters import get_top_k as get_top_k
from praxis.decoding.filters import top_p_mask_logits as top_p_mask_logits
from praxis.decoding.sample_results import (
  reorder_with_indices as reorder_with_indices,
)
from praxis.decoding.sample_results import (
  sort_samples_by_scores as sort_samples_by_scores,
)
from praxis.decoding.sample_results import split_batch_dim as split_batch_dim
from praxis.decoding.samplers import DUMMY_PRNG_KEY as DUMMY_PRNG_KEY
from praxis.decoding.samplers import (
  BaseNextTokenSampler as BaseNextTokenSampler,
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
from praxis.decoding.sampling import (
  MAX_NUM_PER_TOKEN_LOGPROBS as MAX_NUM_PER_TOKEN_LOGPROBS,
)
from praxis.decoding.streaming import (
  StreamingResultCallback as StreamingResultCallback,
)
from praxis.nested_map import NestedMap


def sample_decode(
  model: Any,
  extend_step_fn: loop.ExtendStepFn,
  transform_state_fn: loop.TransformStateFn | None,
  lazy_broadcast_prefix_fn: loop.LazyBroadcastPrefixFn | None,
  next_token_sampler: BaseNextTokenSampler,
  prefix_ids: Int[Array, 'B P'],
  prefix_paddings: Float[Array, 'B P'],
  seq_len: int,
  num_samples: int,
  **options: Any,
) -> NestedMap:
  """Returns continuations of the prompts; see `sampling.decode`.

  Args:
    model: bound, with a mutable DECODE_CACHE.
    extend_step_fn: does one step of it.
    transform_state_fn: changes its decode states; None if it has none.
    lazy_broadcast_prefix_fn: shares states among samples; None: they are
      copied.
    next_token_sampler: draws tokens.
    prefix_ids: the prompts.
    prefix_paddings: 1 where there are none.
    seq_len: number of columns of the result.
    num_samples: how many continuations of each.
    **options: the fields of `sampling.Options`, and fprop_fn (reads the
      prompts), max_prefix_len and prefix_lengths.
  """
  fprop_fn = options.pop('fprop_fn', None)
  columns = options.pop('max_prefix_len', None) or prefix_ids.shape[1]
  lengths = options.pop('prefix_lengths', None)
  at_once = options.get('fprop_for_prefix', False)
  paddings = prefix_paddings[:, :columns] if at_once else prefix_paddings
  if lengths is None:
    lengths = alignment.lengths_of(paddings) * int(at_once)
  return sampling.decode(
    model,
    loop.Steps(
      extend_step=extend_step_fn,
      transform_state=transform_state_fn,
      lazy_broadcast_prefix=lazy_broadcast_prefix_fn,
      fprop=fprop_fn,
    ),
    next_token_sampler,
    sampling.Prefix(
      ids=prefix_ids[:, :columns],
      lengths=lengths,
      original_lengths=alignment.lengths_of(paddings),
    ),
    (num_samples, seq_len),
    sampling.Options(**options),
  )


def sample_decode_after_fprop(
  model: Any,
  extend_step_fn: loop.ExtendStepFn,
  transform_state_fn: loop.TransformStateFn | None,
  lazy_broadcast_prefix_fn: loop.LazyBroadcastPrefixFn | None,
  next_token_sampler: BaseNextTokenSampler,
  *prefix_and_counts: Any,
  **options: Any,
) -> NestedMap:
  """As `sample_decode`, of a model that has read its prompts.

  Its states have room for all steps already, unless they are shared lazily.
  """
  return sample_decode(
    model,
    extend_step_fn,
    transform_state_fn,
    lazy_broadcast_prefix_fn,
    next_token_sampler,
    *prefix_and_counts,
    **options,
  )


def greedy_decode(
  model: Any,
  extend_step_fn: loop.ExtendStepFn,
  prefix_ids: Int[Array, 'B P'],
  prefix_paddings: Float[Array, 'B P'],
  seq_len: int,
  **options: Any,
) -> NestedMap:
  """As `sample_decode`, always with the most probable token.

  `options` may have transform_state_fn beside those of `sample_decode`.
  """
  return sample_decode(
    model,
    extend_step_fn,
    options.pop('transform_state_fn', None),
    None,
    samplers.DefaultNextTokenSampler(top_k=1),
    prefix_ids,
    prefix_paddings,
    seq_len,
    1,
    **options,
  )


def vanilla_sample_decode(
  model: Any,
  fprop_fn: loop.FPropFn,
  extend_step_fn: loop.ExtendStepFn,
  transform_state_fn: loop.TransformStateFn,
  next_token_sampler: BaseNextTokenSampler,
  prefix_ids: Int[Array, 'B P'],
  prefix_paddings: Float[Array, 'B P'],
  **options: Any,
) -> NestedMap:
  """Returns one continuation of each prompt, without a dimension of samples.

  `options` are max_decode_steps, temperature, gumbel_prng_key, eos_id,
  decode_loop_mesh_axes_transpose and model_var_pspecs, as of `sample_decode`.
  """
  result = sample_decode(
    model,
    extend_step_fn,
    transform_state_fn,
    None,
    next_token_sampler,
    prefix_ids,
    prefix_paddings,
    prefix_ids.shape[1] + options['max_decode_steps'],
    1,
    fprop_fn=fprop_fn,
    fprop_for_prefix=True,
    **options,
  )
  return jax.tree.map(lambda x: x[:, 0], result)
