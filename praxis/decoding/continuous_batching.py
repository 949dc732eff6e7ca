# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: steps of requests that come and go by themselves.

Each request has a slot, a row of the caches. All slots read and write the same
column, `step`; the text of a slot ends just before it. The state has for S
slots: step, per_sample_steps [S] (the column of each if it were alone),
output_ids [S] (the last tokens), logprobs [S] (theirs), segment_pos [S],
prefix_lengths, decode_lengths [S], done and has_eos [S], and what requests
asked for: temperature, per_example_max_decode_steps, per_example_top_p and
per_example_top_k, [S].
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from praxis.decoding import loop, meshes, samplers, states, stopping
from praxis.nested_map import NestedMap


def sample_init_decode_state(
  model: Any,
  prefix_ids: Int[Array, 'S P'],
  max_prefix_len: int,
  max_decode_steps: int,
  **options: Any,
) -> NestedMap:
  """Returns the state of requests whose prompts have been read.

  Args:
    model: bound, with a mutable DECODE_CACHE.
    prefix_ids: the prompts, at the right end of their columns.
    max_prefix_len: how many columns they have.
    max_decode_steps: how many tokens are generated at most.
    **options: top_k, top_p, prefix_lengths, eos_id and transform_state_fn, with
      which caches get room for those tokens.
  """
  transform_state_fn = options.get('transform_state_fn')
  if transform_state_fn is not None:
    transform_state_fn(model, states.pad_state_fn(max_decode_steps))
  slots = prefix_ids.shape[0]
  lengths = options.get('prefix_lengths')
  if lengths is None:
    lengths = jnp.zeros(slots, jnp.int32)
  step = max_prefix_len - 1
  state = NestedMap(
    start_step=jnp.asarray(step, jnp.int32),
    step=jnp.asarray(step, jnp.int32),
    per_sample_steps=jnp.full(slots, step, jnp.int32),
    output_ids=prefix_ids[:, step],
    logprobs=jnp.full(slots, loop.NO_LOGPROB, jnp.float32),
    done=jnp.zeros(slots, bool),
    has_eos=jnp.zeros(slots, bool),
    prefix_lengths=lengths,
    decode_lengths=lengths,
    segment_pos=lengths - 1,
  )
  return _sampler(options).init_decode_loop_state(
    state, model, slots, options.get('eos_id')
  )


def sample_decoding_step(
  model: Any,
  decode_state: NestedMap,
  extend_step_fn: loop.ExtendStepFn,
  **options: Any,
) -> NestedMap:
  """Returns the state after one more token of every request that goes on.

  Args:
    model: bound, with a mutable DECODE_CACHE.
    decode_state: of the slots.
    extend_step_fn: does one step of the model.
    **options: top_k, top_p, max_prefix_len, max_decode_steps,
      decode_loop_mesh_axes_transpose and eos_id.
  """
  axes = options.get('decode_loop_mesh_axes_transpose')
  with meshes.maybe_decode_mesh_transpose(model, axes):
    return _step(model, NestedMap(decode_state), extend_step_fn, options)


def _step(
  model: Any,
  state: NestedMap,
  extend_step_fn: loop.ExtendStepFn,
  options: dict[str, Any],
) -> NestedMap:
  steps = loop.Steps(extend_step=extend_step_fn)
  logits = steps.logits(model, state.output_ids, state.segment_pos, state)
  drawn = _sampler(options)(
    model,
    logits,
    _by_row(state.get('temperature', 1.0)),
    state,
    per_example_top_p=_by_row(state.get('per_example_top_p')),
    per_example_top_k=state.get('per_example_top_k'),
  )
  for name in drawn.keys() & state.keys():
    state[name] = drawn[name]
  goes_on = ~state.done
  logprob = samplers.take(logits, drawn.new_ids)
  logprob -= jax.nn.logsumexp(logits, axis=-1)
  state.output_ids = jnp.where(goes_on, drawn.new_ids, 0)
  state.logprobs = jnp.where(goes_on, logprob, loop.NO_LOGPROB)
  state.per_sample_steps += 1
  generated = state.per_sample_steps + 1 - options['max_prefix_len']
  state.decode_lengths = jnp.where(
    goes_on, state.prefix_lengths + generated, state.decode_lengths
  )
  limit = options['max_decode_steps']
  if 'per_example_max_decode_steps' in state:
    limit = jnp.minimum(state.per_example_max_decode_steps, limit)
  state.done |= goes_on & (generated >= limit)
  if options.get('eos_id') is not None:
    eos = loop.as_list(options['eos_id'])
    is_end = goes_on & stopping.has_any_eos(state.output_ids, eos)
    state.has_eos |= is_end
    state.done |= is_end
  state.segment_pos += 1
  state.step += 1
  return state


def _sampler(options: dict[str, Any]) -> samplers.DefaultNextTokenSampler:
  return samplers.DefaultNextTokenSampler(
    top_k=options.get('top_k', 1), top_p=options.get('top_p')
  )


def _by_row(x: Any) -> Any:
  return x.reshape(-1, 1) if isinstance(x, jax.Array) and x.ndim else x
