# SPDX-License-Identifier: Apache-2.0
"""A language model that serves requests which come and go by themselves."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from praxis import base_layer
from praxis.decoding import alignment, continuous_batching
from praxis.decoding.hparams import DecoderHParams
from praxis.layers.models import language_model
from praxis.nested_map import NestedMap

# Of a slot's state, what comes with a request.
_BY_REQUEST = (
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
  """Generates for num_cache_slots requests at once; see `decoding.slots`.

  `sample_init_slots` makes empty slots. A request is read by `sample_prefill`,
  in a call of its own, and put into a slot by `sample_insert`;
  `sample_generate` then gives every slot one token, and `sample_delete` ends
  one. Prompts have seqlen - max_decode_steps columns. All of it needs a
  mutable DECODE_CACHE.
  """

  def sample_init_decode_state(
    self, decode_data: NestedMap, decoder_params: DecoderHParams
  ) -> NestedMap:
    """Returns the state of prompts that were read, with room in the caches."""
    columns, max_steps = _sizes(decoder_params)
    return continuous_batching.sample_init_decode_state(
      self.lm,
      decode_data.input_ids,
      columns,
      max_steps,
      prefix_lengths=decode_data.prefix_lengths,
      transform_state_fn=lambda lm, fn: lm.transform_decode_state(fn),
      **_sampling(decoder_params),
    )

  def sample_init_slots(self, decoder_params: DecoderHParams) -> NestedMap:
    """Returns the state of num_cache_slots empty slots, and makes caches."""
    columns, _ = _sizes(decoder_params)
    if decoder_params.num_cache_slots < 1:
      raise ValueError(
        'num_cache_slots must be > 0 for continuous batching, got '
        f'{decoder_params.num_cache_slots}'
      )
    ids = jnp.zeros((decoder_params.num_cache_slots, columns), jnp.int32)
    batch = NestedMap(ids=ids, paddings=jnp.ones(ids.shape, jnp.float32))
    state = self.sample_prefill(batch, decoder_params)
    state.done = jnp.ones_like(state.done)
    return state

  def sample_prefill(
    self, input_batch: NestedMap, decoder_params: DecoderHParams
  ) -> NestedMap:
    """Reads prompts; returns their state with the first token of each.

    A batch may have temperature, per_example_max_decode_steps,
    per_example_top_p and per_example_top_k, [B].
    """
    columns, max_steps = _sizes(decoder_params)
    if input_batch.ids.shape[1] != columns:
      raise ValueError(
        f'prompts must have {columns} columns, seqlen - max_decode_steps, got '
        f'{input_batch.ids.shape[1]}; pad them'
      )
    hparams = decoder_params.clone()
    hparams.fprop_for_prefix = True
    data = self._prepare_decode_data(input_batch, hparams)
    logits = self._read(self.lm, data).logits[:, -1]
    state = self.sample_init_decode_state(data, decoder_params)
    count = input_batch.ids.shape[0]
    top_k = _sampling(decoder_params)['top_k']
    for name, default in (
      ('temperature', getattr(decoder_params, 'temperature', 0.0)),
      ('per_example_max_decode_steps', max_steps),
      ('per_example_top_p', _sampling(decoder_params)['top_p'] or 1.0),
      ('per_example_top_k', top_k or self.lm.vocab_size),
    ):
      state[name] = input_batch.get(name, jnp.full(count, default))
    return self._step(state, decoder_params, lambda lm, ids, pos: logits)

  def sample_insert(
    self,
    decoder_params: DecoderHParams,
    prefix_decode_state: NestedMap,
    prefix_decode_cache: dict[str, Any],
    decode_state: NestedMap,
    prefix_slot: Int[Array, ''] | int,
    slot: Int[Array, ''] | int,
  ) -> NestedMap:
    """Returns the slots' state with a request in one of them.

    Args:
      decoder_params: how the request is decoded.
      prefix_decode_state: what `sample_prefill` returned.
      prefix_decode_cache: the collections that it left.
      decode_state: of the slots.
      prefix_slot: which of the prefilled requests.
      slot: where it goes.
    """
    columns, _ = _sizes(decoder_params)
    state = NestedMap(decode_state)
    for name in _BY_REQUEST:
      value = prefix_decode_state[name][prefix_slot]
      state[name] = state[name].at[slot].set(value.astype(state[name].dtype))
    # The prompt ends just before the column that is written next.
    offset = (state.step - columns)[jnp.newaxis]

    def take(x: Array, batch_dim: int, time_dim: int) -> Array:
      if batch_dim < 0:
        return x
      row = jax.lax.dynamic_slice_in_dim(x, prefix_slot, 1, batch_dim)
      return (
        row if time_dim < 0 else alignment.shift_rows(row, offset, time_dim)
      )

    cache = prefix_decode_cache[base_layer.DECODE_CACHE]['lm']
    prefilled = self.lm.bind(
      {**self.lm.variables, base_layer.DECODE_CACHE: cache},
      mutable=[base_layer.DECODE_CACHE],
    )
    prefilled.transform_decode_state(take)
    own = self.variables[base_layer.DECODE_CACHE]['lm']
    _put_rows(own, prefilled.variables[base_layer.DECODE_CACHE], slot)
    return state

  def sample_delete(
    self, decode_state: NestedMap, slot: Int[Array, ''] | int
  ) -> NestedMap:
    """Returns the slots' state with one of them empty."""
    state = NestedMap(decode_state)
    state.done = state.done.at[slot].set(True)
    return state

  def left_align_decode_state(
    self,
    max_prefix_len: int,
    max_decode_steps: int,
    decode_state: NestedMap,
    batch_size: int,
  ) -> NestedMap:
    """Moves all texts to the left as far as they have room, to go on longer.

    Args:
      max_prefix_len: how many columns prompts have.
      max_decode_steps: how many tokens are generated at most.
      decode_state: of the slots.
      batch_size: how many there are.
    """
    state = NestedMap(decode_state)
    if state.done.shape != (batch_size,):
      raise ValueError(
        f'decode_state must be of batch_size={batch_size} slots, got '
        f'{list(state.done.shape)}'
      )
    alone = jnp.where(state.done, max_prefix_len, state.per_sample_steps)
    state.per_sample_steps = alone
    last = max_prefix_len + max_decode_steps
    new_step = jnp.minimum(jnp.max(alone), last)
    offset = jnp.broadcast_to(new_step - state.step, (batch_size,))

    def shift(x: Array, batch_dim: int, time_dim: int) -> Array:
      if batch_dim < 0 or time_dim < 0:
        return x
      return alignment.shift_rows(x, offset, time_dim)

    self.lm.transform_decode_state(shift)
    state.step = new_step
    return state

  def sample_generate(
    self,
    decode_state: NestedMap,
    decoder_params: DecoderHParams,
    align_decode_state: bool = False,
  ) -> NestedMap:
    """Returns the slots' state after one more token of each.

    Args:
      decode_state: of the slots.
      decoder_params: how they are decoded.
      align_decode_state: whether texts are moved to the left before; needed
        at the latest when `step` has come to seqlen.
    """
    columns, max_steps = _sizes(decoder_params)
    if align_decode_state:
      decode_state = self.left_align_decode_state(
        columns, max_steps, decode_state, decode_state.done.shape[0]
      )
    self.lm.update_decode_state('time_step', decode_state.step)
    return self._step(
      decode_state,
      decoder_params,
      lambda lm, ids, pos: lm.extend_step(ids, segment_pos=pos).logits,
    )

  def _step(
    self, state: NestedMap, decoder_params: DecoderHParams, extend_step: Any
  ) -> NestedMap:
    columns, max_steps = _sizes(decoder_params)
    return continuous_batching.sample_decoding_step(
      self.lm,
      state,
      extend_step,
      max_prefix_len=columns,
      max_decode_steps=max_steps,
      decode_loop_mesh_axes_transpose=(
        decoder_params.decode_loop_mesh_axes_transpose
      ),
      **_sampling(decoder_params),
    )


def _sizes(decoder_params: DecoderHParams) -> tuple[int, int]:
  """Returns how many columns prompts have, and how many tokens may follow."""
  steps = decoder_params.decode_steps()
  if not steps or decoder_params.seqlen <= steps[-1]:
    raise ValueError(
      'Must set p.decoder_tpl.seqlen > max_decode_steps > 0 for continuous '
      f'batching, got {decoder_params.seqlen} and '
      f'{decoder_params.max_decode_steps}; prompts have the difference'
    )
  return decoder_params.seqlen - steps[-1], steps[-1]


def _sampling(decoder_params: DecoderHParams) -> dict[str, Any]:
  return {
    'top_k': getattr(decoder_params, 'k', 1),
    'top_p': getattr(decoder_params, 'p', None),
    'eos_id': decoder_params.eos_id,
  }


def _put_rows(own: MutableMapping[str, Any], rows: Any, slot: Any) -> None:
  """Replaces one row of each cached tensor, in place.

  Its axis is the one where a tensor of all slots is longer.
  """
  for name, new in rows.items():
    if isinstance(new, jax.Array):
      if new.ndim:
        sizes = zip(own[name].shape, new.shape, strict=True)
        axis = next((i for i, (a, b) in enumerate(sizes) if a != b), 0)
        start = [0] * new.ndim
        start[axis] = slot if own[name].shape != new.shape else 0
        own[name] = jax.lax.dynamic_update_slice(own[name], new, start)
    else:
      _put_rows(own[name], new, slot)
