# SPDX-License-Identifier: Apache-2.0
"""Results of sampling, from the final state of the decode loop."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from praxis.decoding import (
  classifier_free_guidance,
  decode_loop,
  sequence_alignment,
  token_samplers,
)
from praxis.decoding.sampling_options import SamplingOptions
from praxis.nested_map import NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptRows:
  """The prompts in the rows of the decode loop, one row per sample."""

  ids: Int[Array, 'R P']
  # The column of each prompt's first token, and the one after its last token.
  starts: Int[Array, ' R']
  ends: Int[Array, ' R']
  # Number of tokens of the whole texts that the prompts begin.
  original_lengths: Int[Array, ' R']
  # Number of columns of the result.
  seq_len: int
  num_samples: int
  # The column that the first decode step reads.
  start_step: int
  guidance: classifier_free_guidance.ClassifierFreeGuidance | None


def finalize(
  state: NestedMap,
  prompts: PromptRows,
  sampler: token_samplers.BaseNextTokenSampler,
  options: SamplingOptions,
) -> NestedMap:
  """Returns left-aligned results [B, N, ...]; see `sampling.decode`.

  Args:
    state: the final state of the decode loop.
    prompts: the prompts of its rows.
    sampler: may remove its own entries of the state.
    options: the options of sampling.
  """
  if options.optimize_eos:
    state = collect_results_to_optimize_eos(state, prompts.starts)
  output = NestedMap(state)

  def left_align(x: Array, fill: float) -> Array:
    return sequence_alignment.shift_rows(x, -prompts.starts, fill=fill)

  position = jnp.arange(prompts.seq_len)
  is_token = position < state.decode_lengths[:, jnp.newaxis]
  output.output_ids = jnp.where(is_token, left_align(state.output_ids, 0), 0)
  no_logprob = decode_loop.NO_LOGPROB
  output.logprobs = jnp.where(
    is_token, left_align(state.logprobs, no_logprob), no_logprob
  )
  if 'entropy' in state:
    output.entropy = left_align(state.entropy, 0.0)
  prefix_lengths = prompts.ends - prompts.starts
  output.update(
    prefix_ids=_left_align_prefixes(
      prompts.ids, prompts.starts, prefix_lengths
    ),
    prefix_lengths=prefix_lengths,
    original_lengths=prompts.original_lengths,
  )
  for name in ('step', 'start_step', 'segment_pos', 'done', 'has_eos'):
    output.pop(name)
  output = sampler.post_process_decode_loop_state(output)
  if prompts.guidance is not None:
    output = jax.tree.map(prompts.guidance.take_conditional, output)
  output = jax.tree.map(
    lambda x: split_batch_dim(x, 0, prompts.num_samples), output
  )
  if prompts.num_samples > 1 and options.sort_samples:
    return sort_samples_by_scores(output, options.top_k_recall_target)
  return output


def split_batch_dim(
  x: Shaped[Array, '...'], batch_dim: int, num_samples: int
) -> Shaped[Array, '...']:
  """Reshapes [..., batch * samples, ...] to [..., batch, samples, ...].

  Raises:
    ValueError: the dimension is not a multiple of num_samples.
  """
  batch, remainder = divmod(x.shape[batch_dim], num_samples)
  if remainder:
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
  """Returns x[b, indices[b, m]]."""
  return jax.vmap(lambda row, index: row[index])(x, indices)


def sort_samples_by_scores(
  result: NestedMap, top_k_recall_target: float = 0.85
) -> NestedMap:
  """Returns samples sorted by total log-probability, the highest first.

  Args:
    result: has logprobs [B, N, T], NO_LOGPROB where there is none.
    top_k_recall_target: below 1, the recall of an approximate sort that is
      faster on accelerators.
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
  """Returns the sum of the log-probabilities of generated tokens."""
  is_absent = logprobs >= decode_loop.NO_LOGPROB
  return jnp.sum(jnp.where(is_absent, 0.0, logprobs), axis=-1)


def collect_results_to_optimize_eos(
  result: NestedMap, decode_length_shift: int | Int[Array, ' R'] = 0
) -> NestedMap:
  """Ends each row at the column where its total log-probability is largest.

  Args:
    result: a loop state with eos_ids and eos_logprobs [R, T], the best
      end-of-sequence id of each column; NO_LOGPROB where a row cannot end.
    decode_length_shift: number of columns of left padding, which
      decode_lengths does not count.
  """
  output = NestedMap(result)
  column = jnp.arange(result.output_ids.shape[1])[jnp.newaxis]
  logprobs = result.logprobs
  is_generated = logprobs < decode_loop.NO_LOGPROB
  cumulative = jnp.cumsum(jnp.where(is_generated, logprobs, 0.0), axis=-1)
  before = jnp.pad(cumulative, [(0, 0), (1, 0)])[:, :-1]
  may_end = is_generated & (result.eos_logprobs < decode_loop.NO_LOGPROB)
  scores = jnp.where(may_end, before + result.eos_logprobs, -jnp.inf)
  end = jnp.argmax(scores, axis=-1)
  has_end = jnp.any(may_end, axis=-1)
  is_end = has_end[:, jnp.newaxis] & (column == end[:, jnp.newaxis])
  is_after = has_end[:, jnp.newaxis] & (column > end[:, jnp.newaxis])
  ids = jnp.where(is_end, result.eos_ids, result.output_ids)
  output.output_ids = jnp.where(is_after, 0, ids)
  logprobs = jnp.where(is_end, result.eos_logprobs, logprobs)
  output.logprobs = jnp.where(is_after, decode_loop.NO_LOGPROB, logprobs)
  lengths = end + 1 - decode_length_shift
  old_lengths = result.get('decode_lengths', lengths)
  output.decode_lengths = jnp.where(has_end, lengths, old_lengths).astype(
    jnp.int32
  )
  output.done = jnp.ones_like(result.done)
  output.has_eos = result.has_eos | has_end
  for name in ('eos_logprobs', 'eos_ids'):
    output.pop(name)
  return output


def _left_align_prefixes(
  ids: Int[Array, 'R P'],
  starts: Int[Array, ' R'],
  lengths: Int[Array, ' R'],
) -> Int[Array, 'R P']:
  """Returns left-aligned prompts, padded with 0."""
  aligned = sequence_alignment.shift_rows(ids, -starts)
  is_token = jnp.arange(ids.shape[1]) < lengths[:, None]
  return jnp.where(is_token, aligned, 0)
