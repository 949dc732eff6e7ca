# SPDX-License-Identifier: Apache-2.0
"""Sampling of continuations, several for each prompt.

With fprop_for_prefix prompts are right-aligned and prefilled in one forward
pass, and all rows generate from the same column on. Without it prompts are
left-aligned and read token by token from column 0.

The state of the decode loop, which token samplers and constraints read, has for
R rows (B prompts times N samples, adjacent) and T columns: step, start_step,
output_ids [R, T], logprobs [R, T], segment_pos [R], decode_lengths [R],
done [R], has_eos [R], and on request entropy [R, T], top_candidate_ids and
top_candidate_logprobs [R, T, 5], eos_ids and eos_logprobs [R, T].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import py_utils
from praxis.decoding import (
  classifier_free_guidance,
  controlled_decoding,
  decode_loop,
  hparams,
  logit_filters,
  mesh_transpose,
  model_fns,
  per_row_params,
  sample_results,
  state_transforms,
  stop_sequences,
  streaming,
  token_samplers,
)
from praxis.decoding.sampling_options import SamplingOptions
from praxis.nested_map import NestedMap

# The largest number of candidates that are returned of each step.
MAX_NUM_PER_TOKEN_LOGPROBS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prefix:
  """The prompts; right-aligned with fprop_for_prefix, else left-aligned."""

  # The prompts, and possibly columns of zeros after them.
  ids: Int[Array, 'B P']
  lengths: Int[Array, ' B']
  # Number of tokens of the whole texts that the prompts begin.
  original_lengths: Int[Array, ' B']
  # Number of columns of the prompts, 0 if all are empty.
  num_columns: int

  def paddings(self, is_right_aligned: bool) -> Float[Array, 'B P']:
    """Returns 1 at padding, 0 at tokens."""
    column = jnp.arange(self.ids.shape[1])[jnp.newaxis]
    if is_right_aligned:
      column = self.num_columns - 1 - column
    is_token = (column >= 0) & (column < self.lengths[:, jnp.newaxis])
    return 1.0 - is_token


def decode(
  model: Any,
  fns: model_fns.ModelFns,
  sampler: token_samplers.BaseNextTokenSampler,
  prefix: Prefix,
  shape: tuple[int, int],
  options: SamplingOptions,
) -> NestedMap:
  """Returns sampled continuations of the prompts.

  Args:
    model: bound, with a mutable DECODE_CACHE.
    fns: the functions of the model.
    sampler: samples the next token.
    prefix: the prompts.
    shape: (N, T), number of samples and of columns of the result.
    options: all other options.

  Returns:
    output_ids [B, N, T] (prompt and continuation, left-aligned, padded with 0),
    decode_lengths [B, N] (of both, the end-of-sequence id included), logprobs
    [B, N, T] (of generated tokens, and of prompts that are read token by token;
    NO_LOGPROB elsewhere), prefix_ids [B, N, P], prefix_lengths and
    original_lengths [B, N], and on request entropy [B, N, T] (of the steps that
    ran), top_candidate_ids and top_candidate_logprobs.

  Raises:
    ValueError: N or T is not positive, T has no room for the prompts, or
      options contradict each other.
  """
  num_samples, seq_len = shape
  if seq_len <= 0:
    raise ValueError(f'the length of the result must be > 0, got {seq_len}')
  if num_samples < 1:
    raise ValueError(
      f'num_samples must be >= 1, got {num_samples}; 1 is one continuation of'
      ' each prompt'
    )
  if options.fprop_for_prefix and seq_len < prefix.num_columns:
    raise ValueError(
      f'the length of the result must be >= {prefix.num_columns}, the columns'
      f' of the prompts, with fprop_for_prefix=True, got {seq_len}; add'
      ' max_decode_steps to it'
    )
  axes = options.decode_loop_mesh_axes_transpose
  if fns.fprop is not None:
    fns.fprop(model, prefix.ids, prefix.paddings(options.fprop_for_prefix))
  model = mesh_transpose.maybe_reshard_mdl_for_decode(
    model, axes, options.model_var_pspecs, fns.transform
  )
  with mesh_transpose.maybe_decode_mesh_transpose(model, axes):
    body = _create_loop_body(fns, sampler, prefix, shape, options)
    buckets = _step_buckets(fns, options, prefix.num_columns, seq_len)
    _prepare_states(model, fns, num_samples, buckets, options)
    state = body.initial_state(model)
    batch = prefix.ids.shape[0] // (1 if body.guidance is None else 2)
    streamed_shape = batch, num_samples
    state = streaming.start(options.result_callback, state, streamed_shape)
    state = _run_loop(model, body, state, buckets)
    state = streaming.finish(options.result_callback, state)
    if options.return_result_for_suffix_score:
      result = state
    else:
      result = sample_results.finalize(state, body.prompts, sampler, options)
    if options.process_result_fn is not None:
      result = options.process_result_fn(model, result)
  return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SamplingLoopBody:
  """The body of the decode loop: samples one more column."""

  fns: model_fns.ModelFns
  sampler: token_samplers.BaseNextTokenSampler
  options: SamplingOptions
  prompts: sample_results.PromptRows
  row_params: per_row_params.PerRowParams
  guidance: classifier_free_guidance.ClassifierFreeGuidance | None

  def initial_state(self, model: Any) -> NestedMap:
    """Returns the initial state of the loop."""
    options, prompts = self.options, self.prompts
    num_rows, seq_len = prompts.ids.shape[0], prompts.seq_len
    ids = prompts.ids[:, :seq_len]
    ids = jnp.pad(ids, [(0, 0), (0, seq_len - ids.shape[1])])
    no_logprobs = jnp.full(
      (num_rows, seq_len), decode_loop.NO_LOGPROB, jnp.float32
    )
    state = NestedMap(
      step=prompts.start_step,
      start_step=prompts.start_step,
      output_ids=ids,
      logprobs=no_logprobs,
      segment_pos=prompts.start_step - prompts.starts,
      decode_lengths=jnp.minimum(prompts.ends - prompts.starts, seq_len),
      done=jnp.zeros(num_rows, bool),
      has_eos=jnp.zeros(num_rows, bool),
    )
    if options.num_per_token_logprobs is not None:
      shape = (num_rows, seq_len, MAX_NUM_PER_TOKEN_LOGPROBS)
      state.top_candidate_ids = jnp.zeros(shape, jnp.int32)
      state.top_candidate_logprobs = jnp.full(shape, decode_loop.NO_LOGPROB)
    if options.optimize_eos:
      state.eos_logprobs = no_logprobs
      state.eos_ids = jnp.zeros_like(ids)
    if options.return_entropy_score:
      state.entropy = jnp.zeros_like(no_logprobs)
    return self.sampler.init_decode_loop_state(
      state, model, num_rows, options.eos_id
    )

  def __call__(self, model: Any, state: NestedMap) -> NestedMap:
    """Fills column step + 1 with prompt tokens or sampled tokens."""
    ids = decode_loop.get_column(state.output_ids, state.step)
    logits = self.fns.logits(model, ids, state.segment_pos, state)
    if self.guidance is not None:
      logits = self.guidance.mix(logits)
    state = NestedMap(state)
    sampled = self._sample_next_token(model, logits, state)
    for name in sampled.keys() & state.keys():
      state[name] = sampled[name]
    model.add_summary('new_ids', sampled.new_ids)
    model.add_summary('sample_logits', sampled.logits)
    new_ids, logprobs = sampled.new_ids, None
    if self.options.use_top_k_for_logprobs:
      logprobs = sampled.get('logprobs_at_new_ids')
    if self.guidance is not None:
      new_ids, logprobs, logits = jax.tree.map(
        self.guidance.broadcast_to_pairs, (new_ids, logprobs, logits)
      )
    self._append_tokens(state, new_ids, logits, logprobs)
    self._record_scores(state, logits)
    state.step += 1
    state.segment_pos += 1
    callback = self.options.result_callback
    if callback is not None:
      state.num_calls = self._stream(callback, state)
    return state

  def _sample_next_token(
    self, model: Any, logits: Array, state: NestedMap
  ) -> NestedMap:
    if self.options.optimize_eos:
      masked = py_utils.get_large_negative_number(jnp.float32)
      ends = jnp.asarray(self.options.eos_id)
      logits = logit_filters.replace_logits(logits, ends, masked)
    params = self.row_params
    return self.sampler(
      model,
      logits,
      params.temperature,
      state,
      per_example_top_p=params.top_p,
      per_example_top_k=params.top_k,
      gumbel_prng_key=(
        None if params.keys is None else params.keys.at_step(state.step)
      ),
    )

  def _append_tokens(
    self,
    state: NestedMap,
    sampled_ids: Int[Array, ' R'],
    logits: Float[Array, 'R V'],
    sampled_logprobs: Float[Array, ' R'] | None,
  ) -> None:
    """Writes column step + 1 of `state`, and which rows are done.

    Args:
      state: the state of the loop.
      sampled_ids: the tokens of rows that are neither done nor in their prompt.
      logits: of the step; they score the tokens of prompts.
      sampled_logprobs: None: those of the logits.
    """
    options, ends = self.options, self.prompts.ends
    column = state.step + 1
    in_prompt = column < ends
    is_generated = ~in_prompt & ~state.done
    prompt_ids = decode_loop.get_column(state.output_ids, column)
    new_ids = jnp.where(is_generated, sampled_ids, 0)
    new_ids = jnp.where(in_prompt, prompt_ids, new_ids)
    state.output_ids = decode_loop.set_column(state.output_ids, column, new_ids)
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    logprobs = token_samplers.take(logits, new_ids) - log_normalizer
    if sampled_logprobs is not None:
      logprobs = jnp.where(in_prompt, logprobs, sampled_logprobs)
    logprobs = jnp.where(state.done, decode_loop.NO_LOGPROB, logprobs)
    state.logprobs = decode_loop.set_column(state.logprobs, column, logprobs)
    num_generated = column + 1 - ends
    length = column + 1 - self.prompts.starts
    state.decode_lengths = jnp.where(is_generated, length, state.decode_lengths)
    is_last = num_generated >= self.row_params.max_steps
    if options.eos_id is not None:
      sequences = self.row_params.stop_sequences
      is_eos = stop_sequences.is_end(
        options.eos_id if sequences is None else sequences,
        new_ids,
        state.output_ids,
        column,
      )
      is_eos &= is_generated & (num_generated >= options.min_decode_steps)
      state.has_eos |= is_eos
      is_last |= is_eos
    state.done |= is_generated & is_last
    if options.sample_constraint is not None:
      is_constrained = options.sample_constraint(
        options.enforce_sample_constraints, state
      )
      state.done |= is_constrained & is_generated

  def _record_scores(self, state: NestedMap, logits: Array) -> None:
    """Writes entropy, end-of-sequence scores and candidates on request."""
    options, column = self.options, state.step + 1
    requested = (
      options.return_entropy_score,
      options.optimize_eos,
      options.num_per_token_logprobs is not None,
    )
    if not any(requested):
      return
    logprobs = jax.nn.log_softmax(logits)
    if options.return_entropy_score:
      entropy = -jnp.sum(logprobs * jnp.exp(logprobs), axis=-1)
      state.entropy = decode_loop.set_column(state.entropy, column, entropy)
    if options.optimize_eos:
      eos_ids = jnp.atleast_1d(jnp.asarray(options.eos_id, jnp.int32))
      best = jnp.argmax(logprobs[:, eos_ids], axis=-1)
      state.eos_ids = decode_loop.set_column(
        state.eos_ids, column, eos_ids[best]
      )
      # A row cannot end within its prompt, which may be read token by token.
      eos_logprobs = jnp.where(
        column < self.prompts.ends,
        decode_loop.NO_LOGPROB,
        token_samplers.take(logprobs[:, eos_ids], best),
      )
      state.eos_logprobs = decode_loop.set_column(
        state.eos_logprobs, column, eos_logprobs
      )
    if self.row_params.num_candidates is not None:
      self._record_candidates(state, logprobs, self.row_params.num_candidates)

  def _record_candidates(
    self, state: NestedMap, logprobs: Array, num_candidates: Int[Array, ' R']
  ) -> None:
    """Writes the top candidates of the step, at column step - start_step."""
    max_candidates = MAX_NUM_PER_TOKEN_LOGPROBS
    top_k = min(logprobs.shape[-1], max_candidates)
    top_logprobs, ids = jax.lax.top_k(logprobs, top_k)
    num_requested = num_candidates[:, jnp.newaxis]
    is_requested = jnp.arange(max_candidates) < num_requested
    padding = [(0, 0), (0, max_candidates - top_k)]
    top_logprobs = jnp.pad(
      top_logprobs, padding, constant_values=decode_loop.NO_LOGPROB
    )
    column = state.step - state.start_step
    state.top_candidate_logprobs = decode_loop.set_column(
      state.top_candidate_logprobs,
      column,
      jnp.where(is_requested, top_logprobs, decode_loop.NO_LOGPROB),
    )
    state.top_candidate_ids = decode_loop.set_column(
      state.top_candidate_ids,
      column,
      jnp.where(is_requested, jnp.pad(ids, padding), 0),
    )

  def _stream(
    self, callback: streaming.StreamingResultCallback, state: NestedMap
  ) -> Int[Array, '']:
    """Streams the conditional rows; returns the number of calls so far."""
    if self.row_params.num_candidates is not None:
      num_candidates = self.row_params.num_candidates
      state = NestedMap(**state, num_per_token_logprobs=num_candidates)
    guidance = self.guidance
    if guidance is not None:
      num_rows = state.done.shape[0]
      state = jax.tree.map(
        lambda x: (
          guidance.take_conditional(x)
          if x.ndim and x.shape[0] == num_rows
          else x
        ),
        state,
      )
    return streaming.send(callback, state, self.prompts.num_samples)


def _create_loop_body(
  fns: model_fns.ModelFns,
  sampler: token_samplers.BaseNextTokenSampler,
  prefix: Prefix,
  shape: tuple[int, int],
  options: SamplingOptions,
) -> _SamplingLoopBody:
  num_samples, seq_len = shape
  batch, prefix_len = prefix.ids.shape[0], prefix.num_columns
  repeat = lambda x: jnp.repeat(x, num_samples, axis=0)
  is_prefilled = options.fprop_for_prefix
  starts = prefix_len - prefix.lengths if is_prefilled else 0
  starts = jnp.broadcast_to(starts, prefix.lengths.shape)
  guidance = None
  if options.cf_guidance_scale is not None:
    guidance = classifier_free_guidance.ClassifierFreeGuidance.from_scale(
      options.cf_guidance_scale, num_samples
    )
  max_steps = (_max_decode_steps(options) or [seq_len])[-1]
  return _SamplingLoopBody(
    fns=fns,
    sampler=sampler,
    options=options,
    guidance=guidance,
    prompts=sample_results.PromptRows(
      ids=repeat(prefix.ids),
      starts=repeat(starts),
      ends=repeat(starts + prefix.lengths),
      original_lengths=repeat(prefix.original_lengths),
      seq_len=seq_len,
      num_samples=num_samples,
      start_step=prefix_len - 1 if is_prefilled else 0,
      guidance=guidance,
    ),
    row_params=per_row_params.PerRowParams.from_options(
      options, batch, num_samples, max_steps
    ),
  )


def _max_decode_steps(options: SamplingOptions) -> list[int]:
  """Returns max_decode_steps in ascending order, empty if unset."""
  limits = hparams.DecoderHParams(max_decode_steps=options.max_decode_steps)
  return limits.decode_steps()


def _step_buckets(
  fns: model_fns.ModelFns,
  options: SamplingOptions,
  prefix_len: int,
  seq_len: int,
) -> list[int]:
  """Returns the numbers of steps that caches grow through."""
  if not options.fprop_for_prefix:
    return [seq_len - 1]
  buckets = _max_decode_steps(options)
  max_steps = seq_len - prefix_len
  if buckets:
    return [min(bucket, max_steps) for bucket in buckets]
  if fns.fprop is not None:
    raise ValueError(
      'max_decode_steps must be > 0 with fprop_for_prefix, got None'
    )
  return [max_steps]


def _prepare_states(
  model: Any,
  fns: model_fns.ModelFns,
  num_samples: int,
  buckets: Sequence[int],
  options: SamplingOptions,
) -> None:
  """Adds room for the first bucket of steps, and a row for each sample."""
  if fns.lazy_broadcast_prefix is not None and num_samples > 1:
    if not options.fprop_for_prefix:
      raise ValueError(
        'lazy_prefix_broadcast needs fprop_for_prefix=True, got False'
      )
    num_steps = buckets[0]
    control = options.controlled_decoding
    if control is not None and control.interval:
      num_steps = control.interval
    # The first decode step reads the last token of the prompt again.
    fns.transform(model, state_transforms.slice_state_fn(0, -1))
    fns.lazy_broadcast_prefix(model, num_samples, num_steps)
    return
  if fns.fprop is not None:
    fns.transform(model, state_transforms.pad_state_fn(buckets[0]))
  if num_samples > 1:
    fns.transform(model, state_transforms.batch_broadcast_state_fn(num_samples))


def _run_loop(
  model: Any, body: _SamplingLoopBody, state: NestedMap, buckets: Sequence[int]
) -> NestedMap:
  """Returns the final state of the decode loop."""
  should_stop = decode_loop.all_done if body.options.early_exit else None
  control = body.options.controlled_decoding
  if control is None:
    if should_stop is None:
      return decode_loop.run_recording_summaries(
        model, body.fns, body, state, buckets
      )
    return decode_loop.run_buckets(
      model, body.fns, body, state, buckets, should_stop
    )
  num_samples, fns = body.prompts.num_samples, body.fns
  if num_samples == 1:
    # The decode states of single samples are not shared.
    fns = dataclasses.replace(fns, lazy_broadcast_prefix=None)
  schedule = controlled_decoding.BlockSchedule.from_hparams(
    control, num_samples, buckets
  )
  return controlled_decoding.run_blocks(
    model, fns, body, state, schedule, should_stop
  )
