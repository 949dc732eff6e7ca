# SPDX-License-Identifier: Apache-2.0
"""A language model that serves requests by continuous batching."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from praxis import base_layer
from praxis.decoding import (
  continuous_batching,
  model_fns,
  sequence_alignment,
)
from praxis.decoding.hparams import DecoderHParams
from praxis.layers.models import language_model, language_model_decoder
from praxis.nested_map import NestedMap

# The entries of the slots' state that belong to a request.
_PER_REQUEST = (
  'per_sample_steps',
  'done',
  'has_eos',
  'prefix_lengths',
  'segment_pos',
  'decode_lengths',
  'output_ids',
  'logprobs',
  'temperature',
  'per_example_max_decode_steps',
  'per_example_top_p',
  'per_example_top_k',
)


class LanguageModelContinuousBatching(language_model.LanguageModel):
  """Generates for num_cache_slots requests; see `continuous_batching`.

  `sample_init_slots` creates empty slots. `sample_prefill` prefills requests in
  a separate call, and `sample_insert` copies one into a slot. `sample_generate`
  generates one token for every slot, and `sample_delete` empties a slot.
  Prompts have seqlen - max_decode_steps columns. All methods need a mutable
  DECODE_CACHE.
  """

  def sample_init_decode_state(
    self, decode_data: NestedMap, decoder_params: DecoderHParams
  ) -> NestedMap:
    """Returns the state of prefilled prompts, and adds room to the caches."""
    prompt_len, max_steps = _prompt_and_decode_len(decoder_params)
    return continuous_batching.sample_init_decode_state(
      self.lm,
      decode_data.input_ids,
      prompt_len,
      max_steps,
      prefix_lengths=decode_data.prefix_lengths,
      transform_state_fn=lambda lm, fn: lm.transform_decode_state(fn),
      **_sampler_options(decoder_params),
    )

  def sample_init_slots(self, decoder_params: DecoderHParams) -> NestedMap:
    """Returns the state of num_cache_slots empty slots; creates the caches.

    Raises:
      ValueError: num_cache_slots is not positive.
    """
    prompt_len, _ = _prompt_and_decode_len(decoder_params)
    if decoder_params.num_cache_slots < 1:
      raise ValueError(
        'num_cache_slots must be > 0 for continuous batching, got '
        f'{decoder_params.num_cache_slots}'
      )
    ids = jnp.zeros((decoder_params.num_cache_slots, prompt_len), jnp.int32)
    batch = NestedMap(ids=ids, paddings=jnp.ones(ids.shape, jnp.float32))
    state = self.sample_prefill(batch, decoder_params)
    state.done = jnp.ones_like(state.done)
    return state

  def sample_prefill(
    self, input_batch: NestedMap, decoder_params: DecoderHParams
  ) -> NestedMap:
    """Prefills prompts; returns their state with the first token of each.

    Args:
      input_batch: ids and paddings, and optionally temperature,
        per_example_max_decode_steps, per_example_top_p and per_example_top_k,
        [B].
      decoder_params: the settings of the decoder.

    Raises:
      ValueError: prompts have another number of columns.
    """
    prompt_len, max_steps = _prompt_and_decode_len(decoder_params)
    if input_batch.ids.shape[1] != prompt_len:
      raise ValueError(
        f'prompts must have {prompt_len} columns, seqlen - max_decode_steps, '
        f'got {input_batch.ids.shape[1]}; pad them'
      )
    hparams = decoder_params.clone()
    hparams.fprop_for_prefix = True
    data = self._prepare_decode_data(input_batch, hparams)
    # The steps continue after the prompt, whose last token is not read again.
    data.start_time_step = prompt_len
    decoder = language_model_decoder.LanguageModelDecoder(
      lm=self.lm, hparams=hparams, data=data
    )
    logits = decoder.prefill().logits[:, -1]
    state = self.sample_init_decode_state(data, decoder_params)
    batch = input_batch.ids.shape[0]
    sampler_options = _sampler_options(decoder_params)
    defaults = {
      # Slots have the dtypes of the defaults: those of requests are fractions.
      'temperature': float(getattr(decoder_params, 'temperature', 0.0)),
      'per_example_max_decode_steps': max_steps,
      'per_example_top_p': float(sampler_options['top_p'] or 1.0),
      'per_example_top_k': sampler_options['top_k'] or self.lm.vocab_size,
    }
    for name, default in defaults.items():
      state[name] = input_batch.get(name, jnp.full(batch, default))
    prefill_logits = lambda lm, ids, pos: logits
    return self._decode_step(state, decoder_params, prefill_logits)

  def sample_insert(
    self,
    decoder_params: DecoderHParams,
    prefix_decode_state: NestedMap,
    prefix_decode_cache: dict[str, Any],
    decode_state: NestedMap,
    prefix_slot: Int[Array, ''] | int,
    slot: Int[Array, ''] | int,
  ) -> NestedMap:
    """Returns the slots' state with a prefilled request in one of them.

    Args:
      decoder_params: the settings of the decoder.
      prefix_decode_state: the result of `sample_prefill`.
      prefix_decode_cache: the mutable collections of that call.
      decode_state: the state of the slots.
      prefix_slot: the row of the request among the prefilled ones.
      slot: the slot to fill.

    Raises:
      ValueError: prefix_slot or slot is a number outside its range.
    """
    _check_row('prefix_slot', prefix_slot, prefix_decode_state)
    _check_row('slot', slot, decode_state)
    prompt_len, _ = _prompt_and_decode_len(decoder_params)
    state = NestedMap(decode_state)
    for name in _PER_REQUEST:
      value = prefix_decode_state[name][prefix_slot]
      state[name] = _with_row(state[name], slot, value)
    # Align the end of the prompt with the column that is written next.
    offset = (_column(state) - prompt_len)[jnp.newaxis]

    def take_request(x: Array, batch_dim: int, time_dim: int) -> Array:
      if batch_dim < 0:
        return x
      row = jax.lax.dynamic_slice_in_dim(x, prefix_slot, 1, batch_dim)
      if time_dim < 0:
        return row
      return sequence_alignment.shift_rows(row, offset, time_dim)

    cache = prefix_decode_cache[base_layer.DECODE_CACHE]['lm']
    prefilled = self.lm.bind(
      {**self.lm.variables, base_layer.DECODE_CACHE: cache},
      mutable=[base_layer.DECODE_CACHE],
    )
    prefilled.transform_decode_state(take_request)
    slots_cache = self.variables[base_layer.DECODE_CACHE]['lm']
    request_cache = prefilled.variables[base_layer.DECODE_CACHE]
    _update_rows(slots_cache, request_cache, slot)
    return state

  def sample_delete(
    self, decode_state: NestedMap, slot: Int[Array, ''] | int
  ) -> NestedMap:
    """Returns the slots' state with an empty slot.

    Args:
      decode_state: the state of the slots.
      slot: the slot to empty.

    Raises:
      ValueError: slot is a number outside its range.
    """
    _check_row('slot', slot, decode_state)
    state = NestedMap(decode_state)
    state.done = _with_row(state.done, slot, True)
    return state

  def left_align_decode_state(
    self,
    max_prefix_len: int,
    max_decode_steps: int,
    decode_state: NestedMap,
    batch_size: int,
  ) -> NestedMap:
    """Shifts all slots left as far as possible, to make room for more steps.

    Args:
      max_prefix_len: number of columns of prompts.
      max_decode_steps: the largest number of decode steps.
      decode_state: the state of the slots.
      batch_size: the number of slots.

    Raises:
      ValueError: decode_state has another number of slots.
    """
    state = NestedMap(decode_state)
    if state.done.shape != (batch_size,):
      raise ValueError(
        f'decode_state must be of batch_size={batch_size} slots, got '
        f'{list(state.done.shape)}'
      )
    state.per_sample_steps = jnp.where(
      state.done, max_prefix_len, state.per_sample_steps
    )
    last_step = max_prefix_len + max_decode_steps
    step = jnp.minimum(jnp.max(state.per_sample_steps), last_step)
    offset = jnp.broadcast_to(step - _column(state), (batch_size,))

    def shift(x: Array, batch_dim: int, time_dim: int) -> Array:
      if batch_dim < 0 or time_dim < 0:
        return x
      return sequence_alignment.shift_rows(x, offset, time_dim)

    self.lm.transform_decode_state(shift)
    state.step = jnp.reshape(step, jnp.shape(state.step))
    return state

  def sample_generate(
    self,
    decode_state: NestedMap,
    decoder_params: DecoderHParams,
    align_decode_state: bool = False,
  ) -> NestedMap:
    """Returns the slots' state after one more token of each.

    Args:
      decode_state: the state of the slots.
      decoder_params: the settings of the decoder.
      align_decode_state: whether to call `left_align_decode_state` before;
        required once `step` reaches seqlen.
    """
    prompt_len, max_steps = _prompt_and_decode_len(decoder_params)
    if align_decode_state:
      decode_state = self.left_align_decode_state(
        prompt_len, max_steps, decode_state, decode_state.done.shape[0]
      )
    self.lm.update_decode_state('time_step', _column(decode_state))
    return self._decode_step(
      decode_state,
      decoder_params,
      lambda lm, ids, pos: lm.extend_step(ids, segment_pos=pos).logits,
    )

  def _decode_step(
    self,
    state: NestedMap,
    decoder_params: DecoderHParams,
    extend_step_fn: model_fns.ExtendStepFn,
  ) -> NestedMap:
    prompt_len, max_steps = _prompt_and_decode_len(decoder_params)
    return continuous_batching.sample_decoding_step(
      self.lm,
      state,
      extend_step_fn,
      max_prefix_len=prompt_len,
      max_decode_steps=max_steps,
      decode_loop_mesh_axes_transpose=(
        decoder_params.decode_loop_mesh_axes_transpose
      ),
      min_decode_steps=decoder_params.min_decode_steps,
      **_sampler_options(decoder_params),
    )


def _check_row(name: str, row: Int[Array, ''] | int, state: NestedMap) -> None:
  """Checks an index of a request; updates outside would hit another one."""
  num_rows = state.done.shape[0]
  if isinstance(row, jax.core.Tracer):
    return
  if not -num_rows <= int(row) < num_rows:
    raise ValueError(
      f'{name} must be from 0 to {num_rows - 1}, the rows of the state, got '
      f'{int(row)}'
    )


def _with_row(
  x: Array, slot: Int[Array, ''] | int, value: Array | bool
) -> Array:
  """Returns `x` with a row replaced; `.at[slot]` sets several if sharded."""
  row = jnp.asarray(value, x.dtype)
  return jax.lax.dynamic_update_index_in_dim(x, row, slot, 0)


def _column(state: NestedMap) -> Int[Array, '']:
  """Returns the column that is written next; servers keep it as [1]."""
  return jnp.reshape(state.step, ())


def _prompt_and_decode_len(
  decoder_params: DecoderHParams,
) -> tuple[int, int]:
  """Returns the number of columns of prompts, and of decode steps."""
  steps = decoder_params.decode_steps()
  if not steps or decoder_params.seqlen <= steps[-1]:
    raise ValueError(
      'Must set p.decoder_tpl.seqlen > max_decode_steps > 0 for continuous '
      f'batching, got {decoder_params.seqlen} and '
      f'{decoder_params.max_decode_steps}; prompts have the difference'
    )
  return decoder_params.seqlen - steps[-1], steps[-1]


def _sampler_options(decoder_params: DecoderHParams) -> dict[str, Any]:
  return {
    'top_k': getattr(decoder_params, 'k', 1),
    'top_p': getattr(decoder_params, 'p', None),
    'eos_id': decoder_params.eos_id,
  }


def _update_rows(
  cache: MutableMapping[str, Any], row_cache: Any, slot: Int[Array, ''] | int
) -> None:
  """Replaces row `slot` of each tensor of a nested cache, in place.

  The batch axis is the one where the cache of all slots is longer.
  """
  for name, row in row_cache.items():
    if isinstance(row, jax.Array):
      if row.ndim:
        sizes = zip(cache[name].shape, row.shape, strict=True)
        axis = next((i for i, (a, b) in enumerate(sizes) if a != b), 0)
        start: list[int | Array] = [0] * row.ndim
        start[axis] = slot if cache[name].shape != row.shape else 0
        cache[name] = jax.lax.dynamic_update_slice(cache[name], row, start)
    else:
      _update_rows(cache[name], row, slot)
