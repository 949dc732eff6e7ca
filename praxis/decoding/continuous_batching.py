# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: decode steps of requests that start and end at any step.

Each request has a slot, a row of the caches. All slots read and write the same
column `step`; the tokens of a slot end just before it. The state has for S
slots: step, per_sample_steps [S] (the column if the request were the only one),
output_ids and logprobs [S] (of the last tokens), segment_pos, prefix_lengths,
decode_lengths, done and has_eos [S], and the parameters of the requests:
temperature, per_example_max_decode_steps, per_example_top_p and
per_example_top_k, [S].

References: Orca (iteration-level scheduling),
https://www.usenix.org/conference/osdi22/presentation/yu
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from praxis.decoding import (
  decode_loop,
  logit_filters,
  mesh_transpose,
  model_fns,
  state_transforms,
  stop_sequences,
  token_samplers,
)
from praxis.nested_map import NestedMap


def sample_init_decode_state(
  model: Any,
  prefix_ids: Int[Array, 'S P'],
  max_prefix_len: int | None = None,
  max_decode_steps: int | None = None,
  top_k: int = 1,
  top_p: logit_filters.TopP | None = None,
  prefix_lengths: Int[Array, ' S'] | None = None,
  eos_id: int | Sequence[int] | None = None,
  transform_state_fn: model_fns.TransformStateFn | None = None,
) -> NestedMap:
  """Returns the state of requests whose prompts are prefilled.

  Args:
    model: bound, with a mutable DECODE_CACHE.
    prefix_ids: right-aligned prompts.
    max_prefix_len: number of columns of the prompts; None: of prefix_ids.
    max_decode_steps: the largest number of decode steps; required with
      transform_state_fn.
    top_k: number of top tokens to sample from; 0: all.
    top_p: total probability of the tokens to sample from.
    prefix_lengths: number of tokens of the prompts; None: 0.
    eos_id: end-of-sequence ids.
    transform_state_fn: transforms decode states, to add room for
      max_decode_steps; None: they have room.

  Raises:
    ValueError: max_decode_steps is not set.
  """
  if max_prefix_len is None:
    max_prefix_len = prefix_ids.shape[1]
  if transform_state_fn is not None:
    if max_decode_steps is None:
      raise ValueError(
        'max_decode_steps must be a number with transform_state_fn, got None'
      )
    transform_state_fn(model, state_transforms.pad_state_fn(max_decode_steps))
  num_slots = prefix_ids.shape[0]
  if prefix_lengths is None:
    prefix_lengths = jnp.zeros(num_slots, jnp.int32)
  step = max_prefix_len - 1
  state = NestedMap(
    start_step=jnp.asarray(step, jnp.int32),
    step=jnp.asarray(step, jnp.int32),
    per_sample_steps=jnp.full(num_slots, step, jnp.int32),
    output_ids=prefix_ids[:, step],
    logprobs=jnp.full(num_slots, decode_loop.NO_LOGPROB, jnp.float32),
    done=jnp.zeros(num_slots, bool),
    has_eos=jnp.zeros(num_slots, bool),
    prefix_lengths=prefix_lengths,
    decode_lengths=prefix_lengths,
    segment_pos=prefix_lengths - 1,
  )
  sampler = token_samplers.DefaultNextTokenSampler(top_k=top_k, top_p=top_p)
  return sampler.init_decode_loop_state(state, model, num_slots, eos_id)


def sample_decoding_step(
  model: Any,
  decode_state: NestedMap,
  extend_step_fn: model_fns.ExtendStepFn | model_fns.ExpandedExtendStepFn,
  top_k: int = 1,
  top_p: logit_filters.TopP | None = None,
  max_prefix_len: int | None = None,
  max_decode_steps: int | None = None,
  decode_loop_mesh_axes_transpose: dict[str, str] | None = None,
  eos_id: int | Sequence[int] | None = None,
  min_decode_steps: int = 0,
) -> NestedMap:
  """Returns the state after one more token of every active request.

  Args:
    model: bound, with a mutable DECODE_CACHE.
    decode_state: the state of the slots.
    extend_step_fn: runs one decode step of the model.
    top_k: number of top tokens to sample from; 0: all.
    top_p: total probability of the tokens to sample from.
    max_prefix_len: required; number of columns of the prompts.
    max_decode_steps: required; the largest number of decode steps.
    decode_loop_mesh_axes_transpose: mesh axes inside the step.
    eos_id: end-of-sequence ids.
    min_decode_steps: number of decode steps before such an id counts.

  Raises:
    ValueError: max_prefix_len or max_decode_steps is not set.
  """
  if max_prefix_len is None or max_decode_steps is None:
    raise ValueError(
      'max_prefix_len and max_decode_steps must be set, got '
      f'{max_prefix_len} and {max_decode_steps}'
    )
  state = NestedMap(decode_state)
  axes = decode_loop_mesh_axes_transpose
  with mesh_transpose.maybe_decode_mesh_transpose(model, axes):
    fns = model_fns.ModelFns(
      extend_step=model_fns.coerce_to_expanded_extend_step_fn(extend_step_fn)
    )
    logits = fns.logits(model, state.output_ids, state.segment_pos, state)
    sampler = token_samplers.DefaultNextTokenSampler(top_k=top_k, top_p=top_p)
    sampled = sampler(
      model,
      logits,
      _as_column(state.get('temperature', 1.0)),
      state,
      per_example_top_p=_as_column(state.get('per_example_top_p')),
      per_example_top_k=state.get('per_example_top_k'),
    )
  for name in sampled.keys() & state.keys():
    state[name] = sampled[name]
  logprobs = token_samplers.take(logits, sampled.new_ids)
  logprobs -= jax.nn.logsumexp(logits, axis=-1)
  limits = state.get('per_example_max_decode_steps', max_decode_steps)
  limits = jnp.minimum(limits, max_decode_steps)
  is_active = _append_tokens(
    state, sampled.new_ids, logprobs, max_prefix_len, limits
  )
  if eos_id is not None:
    is_eos = is_active & stop_sequences.has_any_eos(
      state.output_ids, stop_sequences.as_list(eos_id)
    )
    is_eos &= _num_generated(state, max_prefix_len) >= min_decode_steps
    state.has_eos |= is_eos
    state.done |= is_eos
  state.segment_pos += 1
  state.step += 1
  return state


def _append_tokens(
  state: NestedMap,
  sampled_ids: Int[Array, ' S'],
  logprobs: Array,
  max_prefix_len: int,
  limits: Int[Array, '*S'],
) -> Bool[Array, ' S']:
  """Writes the tokens of active slots; returns the mask of these slots."""
  is_active = ~state.done
  state.output_ids = jnp.where(is_active, sampled_ids, 0)
  state.logprobs = jnp.where(is_active, logprobs, decode_loop.NO_LOGPROB)
  state.per_sample_steps += 1
  num_generated = _num_generated(state, max_prefix_len)
  state.decode_lengths = jnp.where(
    is_active, state.prefix_lengths + num_generated, state.decode_lengths
  )
  state.done |= is_active & (num_generated >= limits)
  return is_active


def _num_generated(state: NestedMap, max_prefix_len: int) -> Int[Array, ' S']:
  return state.per_sample_steps + 1 - max_prefix_len


def _as_column(x: Any) -> Any:
  """Returns an array [S] as [S, 1], anything else unchanged."""
  return x.reshape(-1, 1) if isinstance(x, jax.Array) and x.ndim else x
