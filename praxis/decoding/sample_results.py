# SPDX-License-Identifier: Apache-2.0
"""From the last state of sampling to its result."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from praxis.decoding import alignment, guidance, loop, samplers
from praxis.nested_map import NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
  """Where the prompts are, a row for each sample."""

  ids: Int[Array, 'R P']
  # Where each begins, and the column after its last token.
  starts: Int[Array, 'R']
  ends: Int[Array, 'R']
  # Of the whole texts that they begin.
  original_lengths: Int[Array, 'R']
  # The number of columns.
  length: int
  num_samples: int
  # The column that the loop reads first.
  first_step: int
  guide: guidance.Guide | None


def result(
  state: NestedMap,
  texts: Texts,
  sampler: samplers.BaseNextTokenSampler,
  options: Any,
) -> NestedMap:
  """Moves rows to the left and gives samples a dimension; see `decode`."""
  if options.optimize_eos:
    state = collect_results_to_optimize_eos(state, texts.starts)
  output = NestedMap(state)
  shift = lambda x, fill: alignment.shift_rows(x, -texts.starts, fill=fill)
  inside = jnp.arange(texts.length) < state.decode_lengths[:, jnp.newaxis]
  output.output_ids = jnp.where(inside, shift(state.output_ids, 0), 0)
  output.logprobs = jnp.where(
    inside, shift(state.logprobs, loop.NO_LOGPROB), loop.NO_LOGPROB
  )
  if 'entropy' in state:
    output.entropy = shift(state.entropy, 0.0)
  lengths = texts.ends - texts.starts
  prefix = shift_prefix(texts.ids, texts.starts, lengths)
  output.update(
    prefix_ids=prefix,
    prefix_lengths=lengths,
    original_lengths=texts.original_lengths,
  )
  for name in ('step', 'start_step', 'segment_pos', 'done', 'has_eos'):
    output.pop(name)
  output = sampler.post_process_decode_loop_state(output)
  if texts.guide is not None:
    output = jax.tree.map(texts.guide.conditioned, output)
  output = jax.tree.map(
    lambda x: split_batch_dim(x, 0, texts.num_samples), output
  )
  if texts.num_samples > 1 and options.sort_samples:
    return sort_samples_by_scores(output, options.top_k_recall_target)
  return output


def shift_prefix(
  ids: Int[Array, 'R P'], starts: Int[Array, 'R'], lengths: Int[Array, 'R']
) -> Int[Array, 'R P']:
  """Returns the prompts at the left, and 0 after them."""
  moved = alignment.shift_rows(ids, -starts)
  return jnp.where(jnp.arange(ids.shape[1]) < lengths[:, None], moved, 0)


def split_batch_dim(
  x: Shaped[Array, '...'], batch_dim: int, num_samples: int
) -> Shaped[Array, '...']:
  """Returns [..., batch * samples, ...] as [..., batch, samples, ...]."""
  batch, rest = divmod(x.shape[batch_dim], num_samples)
  if rest:
    raise ValueError(
      f'dimension {batch_dim} must be a multiple of num_samples={num_samples}, '
      f'got {x.shape[batch_dim]}'
    )
  shape = list(x.shape)
  shape[batch_dim : batch_dim + 1] = [batch, num_samples]
  return x.reshape(shape)


def reorder_with_indices(
  x: Shaped[Array, 'B N *D'], indices: Int[Array, 'B M']
) -> Shaped[Array, 'B M *D']:
  """Returns the samples of each example in the given order."""
  return jax.vmap(lambda row, index: row[index])(x, indices)


def sort_samples_by_scores(
  result: NestedMap, top_k_recall_target: float = 0.85
) -> NestedMap:
  """Returns samples ordered by total log-probability, the highest first.

  Args:
    result: with logprobs, [B, N, T], 1.0 where there are none.
    top_k_recall_target: below 1, the share of samples to be found by a search
      that accelerators do faster.
  """
  scores = sample_scores(result.logprobs)
  if top_k_recall_target < 1.0:
    _, order = jax.lax.approx_max_k(
      scores, scores.shape[-1], recall_target=top_k_recall_target
    )
  else:
    _, order = jax.lax.top_k(scores, scores.shape[-1])
  return jax.tree.map(lambda x: reorder_with_indices(x, order), result)


def sample_scores(
  logprobs: Float[Array, '*B T'],
) -> Float[Array, '*B']:
  """Returns the sum of the log-probabilities that there are."""
  return jnp.sum(jnp.where(logprobs >= loop.NO_LOGPROB, 0.0, logprobs), axis=-1)


def collect_results_to_optimize_eos(
  result: NestedMap, decode_length_shift: int | Int[Array, 'R'] = 0
) -> NestedMap:
  """Ends each text where an end makes it most probable.

  Args:
    result: state of a loop with eos_ids and eos_logprobs, the best end at each
      column.
    decode_length_shift: of how many columns, from the left, lengths do not
      count.
  """
  output = NestedMap(result)
  column = jnp.arange(result.output_ids.shape[1])[jnp.newaxis]
  logprobs = result.logprobs
  generated = logprobs < loop.NO_LOGPROB
  so_far = jnp.cumsum(jnp.where(generated, logprobs, 0.0), axis=-1)
  before = jnp.pad(so_far, [(0, 0), (1, 0)])[:, :-1]
  scores = jnp.where(generated, before + result.eos_logprobs, -jnp.inf)
  best = jnp.argmax(scores, axis=-1)
  last = best[:, jnp.newaxis]
  ends = column == last
  output.output_ids = jnp.where(ends, result.eos_ids, result.output_ids)
  output.output_ids = jnp.where(column > last, 0, output.output_ids)
  output.logprobs = jnp.where(ends, result.eos_logprobs, logprobs)
  output.logprobs = jnp.where(column > last, loop.NO_LOGPROB, output.logprobs)
  output.decode_lengths = (best + 1 - decode_length_shift).astype(jnp.int32)
  output.done = jnp.ones_like(result.done)
  output.has_eos = jnp.ones_like(result.has_eos)
  for name in ('eos_logprobs', 'eos_ids'):
    output.pop(name)
  return output
