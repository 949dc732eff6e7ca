# SPDX-License-Identifier: Apache-2.0
"""Draws continuations of prompts, several samples of each.

A prompt is read in one of two ways. Token by token, it stands at the left of
its row and the loop starts at column 0. At once, it is moved to the right end
of the prompt's columns, so that all rows generate in the same columns, and
the loop starts at the prompt's last column.

The state of the loop, which samplers and constraints see, has for R rows
(prompts times samples, next to each other) and T columns: step, start_step,
output_ids [R, T], logprobs [R, T], segment_pos [R], decode_lengths [R],
done [R] and has_eos [R], and what was asked for of entropy [R, T],
top_candidate_ids and top_candidate_logprobs [R, T, 5], eos_ids and eos_logprobs
[R, T].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from praxis import py_utils
from praxis.decoding import (
  blocks,
  constraints,
  guidance,
  hparams,
  loop,
  meshes,
  per_row_params,
  sample_results,
  samplers,
  states,
  stopping,
  streaming,
)
from praxis.nested_map import NestedMap

# How many candidates a step can report at most.
MAX_NUM_PER_TOKEN_LOGPROBS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prefix:
  """The prompts, at the right end of their columns if read at once."""

  ids: Int[Array, 'B P']
  lengths: Int[Array, 'B']
  # Of the whole texts that they begin.
  original_lengths: Int[Array, 'B']

  def paddings(self, at_right: bool) -> Float[Array, 'B P']:
    """Returns 1 where there is no token."""
    column = jnp.arange(self.ids.shape[1])[jnp.newaxis]
    if at_right:
      column = column[:, ::-1]
    return (column >= self.lengths[:, jnp.newaxis]).astype(jnp.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """What sampling can be asked for; B is the number of prompts."""

  # The scale of classifier-free guidance: one, one a sample, or by prompt [B]
  # or [B, N]. Prompts then are [with a, without a, with b, ...].
  cf_guidance_scale: Sequence[float] | float | Array | None = None
  fprop_for_prefix: bool = False
  # One, or [B] or [B, N].
  temperature: float | Array = 1.0
  # Raw keys, [B] or [B, 2]: what is drawn depends on them and not on the
  # model's random stream.
  gumbel_prng_key: Array | None = None
  per_example_top_p: Float[Array, 'B'] | None = None
  per_example_top_k: Int[Array, 'B'] | None = None
  max_decode_steps: int | Sequence[int] | None = None
  per_example_max_decode_steps: Int[Array, 'B'] | None = None
  min_decode_steps: int = 0
  eos_id: stopping.EosId | None = None
  result_callback: streaming.StreamingResultCallback | None = None
  decode_loop_mesh_axes_transpose: dict[str, str] | None = None
  model_var_pspecs: Any = None
  # Whether the result is the loop's state as it is.
  return_result_for_suffix_score: bool = False
  sort_samples: bool | None = True
  # Of sorting samples.
  top_k_recall_target: float = 1.0
  early_exit: bool = True
  use_top_k_for_logprobs: bool = False
  controlled_decoding: hparams.ControlledDecodingHParams | None = None
  return_entropy_score: bool = False
  process_result_fn: hparams.ProcessResultFn | None = None
  optimize_eos: bool = False
  sample_constraint: constraints.BaseSampleTerminationConstraint | None = None
  enforce_sample_constraints: Array | None = None
  num_per_token_logprobs: Int[Array, 'B'] | None = None

  def __post_init__(self) -> None:
    if self.optimize_eos and (
      self.eos_id is None
      or getattr(self.eos_id, 'ndim', 0) > 1
      or self.use_top_k_for_logprobs
    ):
      raise ValueError(
        'optimize_eos needs an eos_id, no stop sequences, and '
        f'use_top_k_for_logprobs=False, got eos_id={self.eos_id}, '
        f'use_top_k_for_logprobs={self.use_top_k_for_logprobs}'
      )
    if (self.sample_constraint is None) != (
      self.enforce_sample_constraints is None
    ):
      raise ValueError(
        'sample_constraint and enforce_sample_constraints must be given '
        f'together, got {self.sample_constraint} and '
        f'{self.enforce_sample_constraints}; add the latter to the batch'
      )


def decode(
  model: Any,
  steps: loop.Steps,
  sampler: samplers.BaseNextTokenSampler,
  prefix: Prefix,
  shape: tuple[int, int],
  options: Options,
) -> NestedMap:
  """Returns continuations of the prompts.

  Args:
    model: bound, with a mutable DECODE_CACHE.
    steps: how it does steps.
    sampler: draws tokens.
    prefix: the prompts.
    shape: (N, T), the number of samples and of columns of the result.
    options: all the rest.

  Returns:
    For N samples output_ids [B, N, T] (prompt and continuation at the left, 0
    after it), decode_lengths [B, N] (of both, the ending token included),
    logprobs [B, N, T] (1.0 where no token was generated), prefix_ids [B, N, P],
    prefix_lengths [B, N], original_lengths [B, N], and what was asked for of
    entropy, top_candidate_ids and top_candidate_logprobs.
  """
  num_samples, seq_len = shape
  if seq_len <= 0:
    raise ValueError(f'the length of the result must be > 0, got {seq_len}')
  axes = options.decode_loop_mesh_axes_transpose
  if steps.fprop is not None:
    steps.fprop(model, prefix.ids, prefix.paddings(options.fprop_for_prefix))
  model = meshes.maybe_reshard_mdl_for_decode(
    model, axes, options.model_var_pspecs, steps.transform
  )
  with meshes.maybe_decode_mesh_transpose(model, axes):
    plan = _plan(steps, sampler, prefix, shape, options)
    _prepare_states(model, plan)
    state = plan.first_state(model)
    state = streaming.start(options.result_callback, state, num_samples)
    state = _run(model, plan, state)
    state = streaming.finish(options.result_callback, state)
    if options.return_result_for_suffix_score:
      result = state
    else:
      result = sample_results.result(state, plan.texts, sampler, options)
    if options.process_result_fn is not None:
      result = options.process_result_fn(model, result)
  return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
  """What the loop knows beforehand; calling it fills one more column."""

  steps: loop.Steps
  sampler: samplers.BaseNextTokenSampler
  options: Options
  texts: sample_results.Texts
  settings: per_row_params.Rows
  guide: guidance.Guide | None
  buckets: Sequence[int]

  def first_state(self, model: Any) -> NestedMap:
    options, texts = self.options, self.texts
    count, length = texts.ids.shape[0], texts.length
    ids = jnp.pad(texts.ids, [(0, 0), (0, length - texts.ids.shape[1])])
    blank = jnp.full((count, length), loop.NO_LOGPROB, jnp.float32)
    state = NestedMap(
      step=texts.first_step,
      start_step=texts.first_step,
      output_ids=ids,
      logprobs=blank,
      segment_pos=texts.first_step - texts.starts,
      decode_lengths=texts.ends - texts.starts,
      done=jnp.zeros(count, bool),
      has_eos=jnp.zeros(count, bool),
    )
    if options.num_per_token_logprobs is not None:
      shape = (count, length, MAX_NUM_PER_TOKEN_LOGPROBS)
      state.top_candidate_ids = jnp.zeros(shape, jnp.int32)
      state.top_candidate_logprobs = jnp.full(shape, loop.NO_LOGPROB)
    if options.optimize_eos:
      state.eos_logprobs = blank
      state.eos_ids = jnp.zeros_like(ids)
    if options.return_entropy_score:
      state.entropy = jnp.zeros_like(blank)
    return self.sampler.init_decode_loop_state(
      state, model, count, options.eos_id
    )

  def __call__(self, model: Any, state: NestedMap) -> NestedMap:
    """Fills a column: with the prompt where it goes on, or a new token."""
    ids = loop.column_of(state.output_ids, state.step)
    logits = self.steps.logits(model, ids, state.segment_pos, state)
    if self.guide is not None:
      logits = self.guide.mix(logits)
    state = NestedMap(state)
    drawn = self._draw(model, logits, state)
    for name in drawn.keys() & state.keys():
      state[name] = drawn[name]
    if 'logprobs_at_new_ids' in drawn and self.options.use_top_k_for_logprobs:
      logprob = drawn.logprobs_at_new_ids
    else:
      total = jax.nn.logsumexp(logits, axis=-1)
      logprob = samplers.take(logits, drawn.new_ids) - total
    new_ids = drawn.new_ids
    if self.guide is not None:
      new_ids, logprob, logits = jax.tree.map(
        self.guide.to_both, (new_ids, logprob, logits)
      )
    is_new = self._write(state, new_ids, logprob)
    self._report(state, logits, is_new)
    state.step += 1
    state.segment_pos += 1
    if self.options.result_callback is not None:
      state.num_calls = self._send(state)
    return state

  def _draw(self, model: Any, logits: Array, state: NestedMap) -> NestedMap:
    if self.options.optimize_eos:
      hidden = py_utils.get_large_negative_number(jnp.float32)
      logits = logits.at[:, jnp.asarray(self.options.eos_id)].set(hidden)
    settings = self.settings
    return self.sampler(
      model,
      logits,
      settings.temperature,
      state,
      per_example_top_p=settings.top_p,
      per_example_top_k=settings.top_k,
      gumbel_prng_key=settings.keys_of(state.step),
    )

  def _write(
    self, state: NestedMap, drawn: Int[Array, 'R'], logprob: Float[Array, 'R']
  ) -> Bool[Array, 'R']:
    """Adds tokens to the state; returns which of them are generated."""
    options, ends = self.options, self.texts.ends
    column = state.step + 1
    in_prompt = column < ends
    is_new = ~in_prompt & ~state.done
    given = loop.column_of(state.output_ids, column)
    new_ids = jnp.where(in_prompt, given, jnp.where(is_new, drawn, 0))
    state.output_ids = loop.set_column(state.output_ids, column, new_ids)
    logprob = jnp.where(is_new, logprob, loop.NO_LOGPROB)
    state.logprobs = loop.set_column(state.logprobs, column, logprob)
    generated = column + 1 - ends
    length = column + 1 - self.texts.starts
    state.decode_lengths = jnp.where(is_new, length, state.decode_lengths)
    ended = generated >= self.settings.max_steps
    if options.eos_id is not None:
      stops = self.settings.stops
      is_end = stopping.is_end(
        options.eos_id if stops is None else stops,
        new_ids,
        state.output_ids,
        column,
      )
      is_end &= is_new & (generated >= options.min_decode_steps)
      state.has_eos |= is_end
      ended |= is_end
    state.done |= is_new & ended
    if options.sample_constraint is not None:
      enforced = options.sample_constraint(
        options.enforce_sample_constraints, state
      )
      state.done |= enforced & is_new
    return is_new

  def _report(
    self, state: NestedMap, logits: Array, is_new: Bool[Array, 'R']
  ) -> None:
    """Adds to the state what was asked for beside the tokens."""
    options, column = self.options, state.step + 1
    wanted = (
      options.return_entropy_score,
      options.optimize_eos,
      options.num_per_token_logprobs is not None,
    )
    if not any(wanted):
      return
    logprobs = jax.nn.log_softmax(logits)
    if options.return_entropy_score:
      entropy = -jnp.sum(logprobs * jnp.exp(logprobs), axis=-1)
      entropy = jnp.where(is_new, entropy, 0.0)
      state.entropy = loop.set_column(state.entropy, column, entropy)
    if options.optimize_eos:
      eos = jnp.asarray(loop.as_list(options.eos_id), jnp.int32)
      best = jnp.argmax(logprobs[:, eos], axis=-1)
      state.eos_ids = loop.set_column(state.eos_ids, column, eos[best])
      state.eos_logprobs = loop.set_column(
        state.eos_logprobs, column, samplers.take(logprobs[:, eos], best)
      )
    if options.num_per_token_logprobs is not None:
      self._report_candidates(state, logprobs, is_new)

  def _report_candidates(
    self, state: NestedMap, logprobs: Array, is_new: Bool[Array, 'R']
  ) -> None:
    most = MAX_NUM_PER_TOKEN_LOGPROBS
    count = min(logprobs.shape[-1], most)
    best, ids = jax.lax.top_k(logprobs, count)
    wanted = jnp.where(is_new, self.settings.num_candidates, 0)
    kept = jnp.arange(most) < wanted[:, jnp.newaxis]
    fill = [(0, 0), (0, most - count)]
    best = jnp.pad(best, fill, constant_values=loop.NO_LOGPROB)
    place = state.step - state.start_step
    state.top_candidate_logprobs = loop.set_column(
      state.top_candidate_logprobs,
      place,
      jnp.where(kept, best, loop.NO_LOGPROB),
    )
    state.top_candidate_ids = loop.set_column(
      state.top_candidate_ids, place, jnp.where(kept, jnp.pad(ids, fill), 0)
    )

  def _send(self, state: NestedMap) -> Int[Array, '']:
    if self.guide is not None:
      count = state.done.shape[0]
      state = jax.tree.map(
        lambda x: (
          self.guide.conditioned(x) if x.ndim and x.shape[0] == count else x
        ),
        state,
      )
    callback, num_samples = self.options.result_callback, self.texts.num_samples
    return streaming.send(callback, state, num_samples)


def _plan(
  steps: loop.Steps,
  sampler: samplers.BaseNextTokenSampler,
  prefix: Prefix,
  shape: tuple[int, int],
  options: Options,
) -> _Plan:
  num_samples, seq_len = shape
  limits = hparams.DecoderHParams(max_decode_steps=options.max_decode_steps)
  limits = limits.decode_steps()
  repeat = lambda x: jnp.repeat(x, num_samples, axis=0)
  columns = prefix.ids.shape[1]
  starts = columns - prefix.lengths if options.fprop_for_prefix else 0
  starts = jnp.broadcast_to(starts, prefix.lengths.shape)
  if options.fprop_for_prefix and not limits:
    raise ValueError(
      'max_decode_steps must be > 0 with fprop_for_prefix, got None'
    )
  guide = None
  if options.cf_guidance_scale is not None:
    guide = guidance.Guide.of(options.cf_guidance_scale, num_samples)
  first_step = columns - 1 if options.fprop_for_prefix else 0
  return _Plan(
    steps=steps,
    sampler=sampler,
    options=options,
    guide=guide,
    texts=sample_results.Texts(
      ids=repeat(prefix.ids)[:, :seq_len],
      starts=repeat(starts),
      ends=repeat(starts + prefix.lengths),
      original_lengths=repeat(prefix.original_lengths),
      length=seq_len,
      num_samples=num_samples,
      first_step=first_step,
      guide=guide,
    ),
    settings=per_row_params.Rows.of(
      options, prefix.ids.shape[0], num_samples, (limits or [seq_len])[-1]
    ),
    buckets=limits if options.fprop_for_prefix else [seq_len - 1],
  )


def _prepare_states(model: Any, plan: _Plan) -> None:
  """Gives caches a row for each sample, and room for the first steps."""
  steps, num_samples = plan.steps, plan.texts.num_samples
  room = plan.buckets[0]
  if steps.lazy_broadcast_prefix is not None and num_samples > 1:
    if not plan.options.fprop_for_prefix:
      raise ValueError(
        'lazy_prefix_broadcast needs prompts that are read at once, got '
        'fprop_for_prefix=False; set it to True'
      )
    control = plan.options.controlled_decoding
    if control is not None and control.interval:
      room = control.interval
    # The last token of the prompt is the first that steps read.
    steps.transform(model, states.slice_state_fn(0, -1))
    steps.lazy_broadcast_prefix(model, num_samples, room)
    return
  if steps.fprop is not None:
    steps.transform(model, states.pad_state_fn(room))
  if num_samples > 1:
    steps.transform(model, states.batch_broadcast_state_fn(num_samples))


def _run(model: Any, plan: _Plan, state: NestedMap) -> NestedMap:
  is_over = loop.all_done if plan.options.early_exit else None
  if plan.options.controlled_decoding is not None:
    return blocks.run(model, plan, state, is_over)
  return loop.run_buckets(model, plan.steps, plan, state, plan.buckets, is_over)
