# SPDX-License-Identifier: Apache-2.0
"""Beam search whose caches stay where they are: a mask says who sees what.

The tokens of all K hypotheses of all steps stand in one cache, [B, T * K], step
by step. The mask of a hypothesis, over those, shows the tokens that it is made
of. Where `beams` reorders caches, this reorders masks.

It needs a decoder whose layers know positions by `segment_pos` alone: no
relative bias, window, convolution or n-grammer; see
`decode_states.check_decoding`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import jax.typing
from jaxtyping import Array, Float, Int, Num

from praxis import py_utils
from praxis.decoding import alignment, hypotheses, loop, states
from praxis.decoding.hparams import FlatBeamSearchHParams
from praxis.nested_map import NestedMap


def init_loop_var(
  target_prefix_ids: Int[Array, 'B P'],
  beam_size: int,
  seq_len: int,
  fprop_dtype: jax.typing.DTypeLike,
) -> NestedMap:
  """Returns the first state of a loop of `seq_len` - 1 steps.

  It has step, output_ids [T, B, K] (first the prompts' last ids), beam_mask
  and end_mask [B, K, K * T], hyp_scores, end_scores and end_scores_norm [B, K],
  and done [B, K].
  """
  batch = target_prefix_ids.shape[0]
  shape = (batch, beam_size)
  ids = jnp.zeros((seq_len, *shape), jnp.int32)
  ids = ids.at[0].set(target_prefix_ids[:, -1:])
  first = jnp.eye(beam_size, beam_size * seq_len, dtype=fprop_dtype)
  none = jnp.full(shape, hypotheses.NO_SCORE, fprop_dtype)
  return NestedMap(
    step=0,
    output_ids=ids,
    beam_mask=jnp.broadcast_to(first, (batch, *first.shape)),
    hyp_scores=hypotheses.first_scores(*shape).astype(fprop_dtype),
    end_mask=jnp.zeros((batch, *first.shape), fprop_dtype),
    end_scores=none,
    end_scores_norm=none,
    done=jnp.zeros(shape, bool),
  )


def update_beam_mask(
  beam_mask: Float[Array, 'B K M'],
  hyp_id: Int[Array, 'B K'],
  time_step: Int[Array, ''] | int | None,
) -> Float[Array, 'B K M']:
  """Returns the masks of what hypotheses come from, and of their new token.

  Args:
    beam_mask: of the hypotheses so far.
    hyp_id: which of them each new one comes from.
    time_step: the step of the new tokens; None: there are none.
  """
  mask = hypotheses.take_hypotheses(beam_mask, hyp_id)
  if time_step is None:
    return mask
  beam, size = mask.shape[1:]
  place = jnp.arange(beam) + time_step * beam
  return mask + jax.nn.one_hot(place, size, dtype=mask.dtype)


def get_final_output_ids(
  beam_mask: Float[Array, 'B K M'], output_ids: Num[Array, 'B K T']
) -> Num[Array, 'B K T']:
  """Returns what each hypothesis is made of, by its mask."""
  batch, beam, length = output_ids.shape
  mask = beam_mask.reshape(batch, beam, length, beam) > 0
  every = jnp.moveaxis(output_ids, 1, 2)[:, jnp.newaxis]
  return jnp.sum(jnp.where(mask, every, 0), axis=-1).astype(output_ids.dtype)


def update_topk_scores_with_eos(
  end_hyps: tuple[Array, ...], cur_hyps: tuple[Array, ...]
) -> tuple[Array, ...]:
  """Returns the best of (mask, score, normalised score), old and new."""
  return hypotheses.keep_best(end_hyps, cur_hyps)


def post_process(
  result: NestedMap, eos_id: int, max_decoding_steps: int
) -> NestedMap:
  """Returns the last state with finished texts instead of masks' material.

  output_ids become [B, K, T] with `eos_id` at their end, decode_lengths
  [B, K] (at most max_decoding_steps) count it.
  """
  output = NestedMap(result)
  ids = jnp.moveaxis(result.output_ids, 0, -1)
  ids = get_final_output_ids(result.end_mask, ids)
  lengths = jnp.sum(result.end_mask > 0, axis=-1).astype(jnp.int32)
  end = jnp.arange(ids.shape[-1]) == lengths[..., jnp.newaxis]
  output.output_ids = jnp.where(end, eos_id, ids)
  output.decode_lengths = jnp.minimum(lengths + 1, max_decoding_steps)
  output.scores = result.end_scores_norm
  for name in ('step', 'done', 'end_scores_norm'):
    output.pop(name)
  return output


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlatSearch:
  """A flat beam search of one kind of prompts; calling it does one step.

  The model's extend_step takes [B, K] ids and positions, and the loop's state,
  whose `atten_mask` [B, 1, K, S] says what they see.
  """

  steps: loop.Steps
  hparams: FlatBeamSearchHParams
  # The prompts, at the right end of their columns.
  prefix_ids: Int[Array, 'B P']
  prefix_lengths: Int[Array, 'B']
  dtype: jax.typing.DTypeLike = jnp.float32

  def first_state(self) -> NestedMap:
    """Returns the state that the loop starts with."""
    beam, length = self.hparams.beam_size, self._max_steps() + 1
    state = init_loop_var(self.prefix_ids, beam, length, self.dtype)
    shape = state.hyp_scores.shape
    return NestedMap(
      **state,
      logprobs=jnp.full((length, *shape), loop.NO_LOGPROB, jnp.float32),
      end_eos_ids=jnp.zeros(shape, jnp.int32),
      end_eos_logprobs=jnp.zeros(shape, jnp.float32),
      atten_mask=self._atten_mask(state.beam_mask),
    )

  def prepare_states(self, model: Any) -> None:
    """Gives caches room for all hypotheses, from the last prompt token on."""
    room = self.hparams.beam_size * self._max_steps() - 1
    self.steps.transform(model, states.pad_state_fn(room))

  def __call__(self, model: Any, state: NestedMap) -> NestedMap:
    """Returns the state after one more token of every hypothesis."""
    state = NestedMap(state)
    step = state.step + 1
    ids = state.output_ids[state.step]
    position = jnp.broadcast_to(
      (self.prefix_lengths + state.step - 1)[:, jnp.newaxis], ids.shape
    )
    state.atten_mask = self._atten_mask(state.beam_mask)
    logits = self.steps.logits(model, ids, position, state)
    expansion = hypotheses.expand(
      jax.nn.log_softmax(logits), state.hyp_scores, step, self.hparams
    )
    ended = (
      state.beam_mask,
      state.hyp_scores + expansion.end_logprobs,
      expansion.end_scores,
      expansion.end_ids,
      expansion.end_logprobs,
    )
    names = (
      'end_mask',
      'end_scores',
      'end_scores_norm',
      'end_eos_ids',
      'end_eos_logprobs',
    )
    kept = hypotheses.keep_best(tuple(state[name] for name in names), ended)
    state.update(zip(names, kept, strict=True))
    state.update(
      output_ids=state.output_ids.at[step].set(expansion.ids),
      logprobs=state.logprobs.at[step].set(expansion.logprobs),
      hyp_scores=expansion.scores.astype(self.dtype),
      beam_mask=update_beam_mask(state.beam_mask, expansion.parents, step),
      step=step,
    )
    decided = hypotheses.is_decided(
      state.hyp_scores, state.end_scores_norm, self._max_steps(), self.hparams
    )
    state.done = jnp.broadcast_to(decided[:, None], state.done.shape)
    return state

  def result(self, state: NestedMap) -> NestedMap:
    """Returns the finished texts, the best first, as `beams.search` does."""
    batch, columns = self.prefix_ids.shape
    beam, offset = self.hparams.beam_size, self.hparams.output_id_offset
    count = jnp.sum(state.end_mask > 0, axis=-1).astype(jnp.int32)
    place = jnp.arange(self._max_steps() + 1)

    def path(x: Array, end: Array, fill: float) -> Array:
      x = get_final_output_ids(state.end_mask, jnp.moveaxis(x, 0, -1))
      x = jnp.where(place == count[..., None], end[..., None], x)
      return jnp.where(place > count[..., None], fill, x)[:, :, 1:]

    prefix = jnp.repeat(self.prefix_ids[:, jnp.newaxis], beam, axis=1)
    blank = jnp.full(prefix.shape, loop.NO_LOGPROB)
    exists = state.end_scores_norm > hypotheses.NO_SCORE / 2
    ids = path(state.output_ids + offset, state.end_eos_ids + offset, 0)
    logprobs = path(state.logprobs, state.end_eos_logprobs, loop.NO_LOGPROB)
    starts = jnp.repeat(columns - self.prefix_lengths, beam)

    def to_left(first: Array, then: Array, fill: float) -> Array:
      then = jnp.where(exists[..., None], then, fill)
      rows = jnp.concatenate([first, then], axis=-1)
      flat = rows.reshape(batch * beam, -1)
      return alignment.shift_rows(flat, -starts, fill=fill).reshape(rows.shape)

    lengths = jnp.broadcast_to(self.prefix_lengths[:, None], (batch, beam))
    prefix_ids = alignment.left_align_tensor(
      self.prefix_ids, self.prefix_lengths, columns
    )
    return NestedMap(
      output_ids=to_left(prefix, ids, 0),
      logprobs=to_left(blank, logprobs, loop.NO_LOGPROB),
      scores=state.end_scores_norm,
      decode_lengths=lengths + jnp.where(exists, count, 0),
      done=exists,
      prefix_ids=prefix_ids[:, jnp.newaxis],
      prefix_lengths=lengths,
      original_lengths=lengths,
    )

  def _atten_mask(
    self, beam_mask: Float[Array, 'B K M']
  ) -> Float[Array, 'B 1 K S']:
    """Returns what is hidden: the padding, and tokens of other hypotheses."""
    beam = beam_mask.shape[1]
    before = self.prefix_ids.shape[1] - 1
    starts = before + 1 - self.prefix_lengths
    is_prompt = jnp.arange(before) >= starts[:, jnp.newaxis]
    is_prompt = jnp.repeat(is_prompt[:, jnp.newaxis], beam, axis=1)
    is_own = beam_mask[:, :, : beam * self._max_steps()] > 0
    visible = jnp.concatenate([is_prompt, is_own], axis=-1)
    hidden = py_utils.get_large_negative_number(jnp.float32)
    return jnp.where(visible, 0.0, hidden)[:, jnp.newaxis]

  def _max_steps(self) -> int:
    steps = self.hparams.decode_steps()
    if not steps or self.hparams.beam_size < 1:
      raise ValueError(
        'max_decode_steps and beam_size must be > 0 in a beam search, got '
        f'{self.hparams.max_decode_steps} and {self.hparams.beam_size}'
      )
    return steps[-1]


def run(model: Any, flat_search: FlatSearch) -> NestedMap:
  """Returns the last state of a search; the model has read the prompts.

  Caches end with the prompt's last token, which is read again.
  """
  early = flat_search.hparams.early_exit
  return loop.run(
    model,
    flat_search,
    flat_search.first_state(),
    flat_search.hparams.decode_steps()[-1],
    loop.all_done if early else None,
  )
