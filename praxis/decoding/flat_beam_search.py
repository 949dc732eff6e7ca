# SPDX-License-Identifier: Apache-2.0
"""Flat beam search: hypotheses share one KV cache through attention masks.

One cache [B, T * K] holds the tokens of all K hypotheses, step by step. The
beam mask of a hypothesis marks the tokens that it consists of. `beam_search`
reorders caches; this search reorders masks.

`FlatBeamSearch` continues prompts, by log-probabilities. praxis's function
`flat_beam_search` starts from the last token of the prompts alone and ranks
hypotheses by sums of logits; so does `FlatBeamSearchFromLastToken`.

It needs a decoder whose layers use positions only through `segment_pos`: no
relative bias, window, convolution or n-grammer; see
`decode_states.check_decoding`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.typing
from jaxtyping import Array, Float, Int, Num

from praxis import py_utils
from praxis.decoding import (
  decode_loop,
  hypotheses,
  model_fns,
  sequence_alignment,
  state_transforms,
)
from praxis.decoding.hparams import FlatBeamSearchHParams
from praxis.nested_map import NestedMap


def init_loop_var(
  target_prefix_ids: Int[Array, 'B P'],
  beam_size: int,
  seq_len: int,
  fprop_dtype: jax.typing.DTypeLike,
) -> NestedMap:
  """Returns the initial state of a decode loop of seq_len - 1 steps.

  Args:
    target_prefix_ids: right-aligned prompts.
    beam_size: K.
    seq_len: T, number of decode steps plus one.
    fprop_dtype: the dtype of masks and scores.

  Returns:
    step, output_ids [T, B, K] (first the last ids of the prompts), beam_mask
    and end_mask [B, K, K * T], hyp_scores, end_scores, end_scores_norm and done
    [B, K].
  """
  batch = target_prefix_ids.shape[0]
  shape = (batch, beam_size)
  ids = jnp.zeros((seq_len, *shape), jnp.int32)
  ids = ids.at[0].set(target_prefix_ids[:, -1:])
  first_tokens = jnp.eye(beam_size, beam_size * seq_len, dtype=fprop_dtype)
  no_score = jnp.full(shape, hypotheses.NO_SCORE, fprop_dtype)
  return NestedMap(
    step=0,
    output_ids=ids,
    beam_mask=jnp.broadcast_to(first_tokens, (batch, *first_tokens.shape)),
    hyp_scores=hypotheses.initial_scores(*shape).astype(fprop_dtype),
    end_mask=jnp.zeros((batch, *first_tokens.shape), fprop_dtype),
    end_scores=no_score,
    end_scores_norm=no_score,
    done=jnp.zeros(shape, bool),
  )


def update_beam_mask(
  beam_mask: Float[Array, 'B K M'],
  hyp_id: Num[Array, 'B K'],
  time_step: Int[Array, ''] | int | None,
) -> Float[Array, 'B K M']:
  """Returns the parents' masks with the new tokens added.

  Args:
    beam_mask: masks of the previous hypotheses.
    hyp_id: the parent of each new hypothesis, as integers or floats.
    time_step: the step of the new tokens; None: no new tokens.
  """
  parents = hyp_id.astype(jnp.int32)
  mask = hypotheses.gather_hypotheses(beam_mask, parents)
  if time_step is None:
    return mask
  beam, size = mask.shape[1:]
  position = jnp.arange(beam) + time_step * beam
  return mask + jax.nn.one_hot(position, size, dtype=mask.dtype)


def get_final_output_ids(
  beam_mask: Float[Array, 'B K M'], output_ids: Num[Array, 'B K T']
) -> Num[Array, 'B K T']:
  """Returns the values of each hypothesis, selected by its mask."""
  batch, beam, length = output_ids.shape
  mask = beam_mask.reshape(batch, beam, length, beam) > 0
  values = jnp.moveaxis(output_ids, 1, 2)[:, jnp.newaxis]
  return jnp.sum(jnp.where(mask, values, 0), axis=-1).astype(output_ids.dtype)


def update_topk_scores_with_eos(
  end_hyps: tuple[Array, ...], cur_hyps: tuple[Array, ...]
) -> tuple[Array, ...]:
  """Returns the K best of old and new (mask, score, normalized score)."""
  return hypotheses.keep_best(end_hyps, cur_hyps)


def post_process(
  result: NestedMap, eos_id: int | Int[Array, 'B K 1'], max_decoding_steps: int
) -> NestedMap:
  """Returns the final state with the ids of the finished hypotheses.

  Args:
    result: the final state of the loop.
    eos_id: appended to each hypothesis; one, or one for each.
    max_decoding_steps: the upper bound of decode_lengths.

  Returns:
    `result` with output_ids [B, K, T], decode_lengths [B, K], which count
    `eos_id`, and scores [B, K].
  """
  output = NestedMap(result)
  ids = jnp.moveaxis(result.output_ids, 0, -1)
  ids = get_final_output_ids(result.end_mask, ids)
  lengths = jnp.sum(result.end_mask > 0, axis=-1).astype(jnp.int32)
  is_end = jnp.arange(ids.shape[-1]) == lengths[..., jnp.newaxis]
  output.output_ids = jnp.where(is_end, eos_id, ids)
  output.decode_lengths = jnp.minimum(lengths + 1, max_decoding_steps)
  output.scores = result.end_scores_norm
  for name in ('step', 'done', 'end_scores_norm'):
    output.pop(name)
  return output


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlatBeamSearch:
  """Flat beam search; the body of its decode loop.

  The model's extend_step takes [B, K] ids and positions, and the loop's state
  with the attention mask `atten_mask` [B, 1, K, S].
  """

  fns: model_fns.ModelFns
  hparams: FlatBeamSearchHParams
  # Right-aligned.
  prefix_ids: Int[Array, 'B P']
  prefix_lengths: Int[Array, ' B']
  dtype: jax.typing.DTypeLike = jnp.float32
  # The terms of scores, from logits.
  token_scores: Callable[[Float[Array, 'B K V']], Float[Array, 'B K V']] = (
    jax.nn.log_softmax
  )

  def initial_state(self) -> NestedMap:
    """Returns the initial state of the decode loop."""
    beam, length = self.hparams.beam_size, self._max_steps + 1
    state = init_loop_var(self.prefix_ids, beam, length, self.dtype)
    shape = state.hyp_scores.shape
    return NestedMap(
      **state,
      logprobs=jnp.full((length, *shape), decode_loop.NO_LOGPROB, jnp.float32),
      end_eos_ids=jnp.zeros(shape, jnp.int32),
      end_eos_logprobs=jnp.zeros(shape, jnp.float32),
      atten_mask=self._atten_mask(state.beam_mask, state.step),
    )

  def prepare_states(self, model: Any) -> None:
    """Adds room for the tokens of all hypotheses.

    The first step writes the last token of the prompt again.
    """
    num_tokens = self.hparams.beam_size * self._max_steps - 1
    self.fns.transform(model, state_transforms.pad_state_fn(num_tokens))

  def run_loop(self, model: Any) -> NestedMap:
    """Returns the final state of the decode loop of a prefilled model."""
    return decode_loop.run(
      model,
      self,
      self.initial_state(),
      self._max_steps,
      decode_loop.all_done if self.hparams.early_exit else None,
    )

  def __call__(self, model: Any, state: NestedMap) -> NestedMap:
    """Returns the state after one more token of every hypothesis."""
    state = NestedMap(state)
    step = state.step + 1
    ids = state.output_ids[state.step]
    segment_pos = jnp.broadcast_to(
      (self.prefix_lengths + state.step - 1)[:, jnp.newaxis], ids.shape
    )
    state.atten_mask = self._atten_mask(state.beam_mask, state.step)
    logits = self.fns.logits(model, ids, segment_pos, state)
    scores = self.token_scores(logits.reshape(*ids.shape, -1))
    expansion = hypotheses.expand(scores, state.hyp_scores, step, self.hparams)
    self._update_finished(state, expansion)
    state.update(
      output_ids=state.output_ids.at[step].set(expansion.ids),
      logprobs=state.logprobs.at[step].set(expansion.logprobs),
      hyp_scores=expansion.scores.astype(self.dtype),
      beam_mask=update_beam_mask(state.beam_mask, expansion.parents, step),
      done=hypotheses.update_done(
        state.done, expansion.parents, expansion.ids, self.hparams.eos_id
      ),
      step=step,
    )
    return state

  def result(self, state: NestedMap) -> NestedMap:
    """Returns the finished hypotheses; see `beam_search.run_search`."""
    batch, prefix_len = self.prefix_ids.shape
    beam, offset = self.hparams.beam_size, self.hparams.output_id_offset
    end_position = jnp.sum(state.end_mask > 0, axis=-1).astype(jnp.int32)
    position = jnp.arange(self._max_steps + 1)
    exists = state.end_scores_norm > hypotheses.NO_SCORE / 2
    num_padding = jnp.repeat(prefix_len - self.prefix_lengths, beam)

    def decoded(steps: Array, end: Array, fill: float) -> Array:
      values = get_final_output_ids(state.end_mask, jnp.moveaxis(steps, 0, -1))
      values = jnp.where(
        position == end_position[..., None], end[..., None], values
      )
      values = jnp.where(position > end_position[..., None], fill, values)
      return jnp.where(exists[..., None], values[:, :, 1:], fill)

    def left_align(prefix: Array, decoded: Array, fill: float) -> Array:
      rows = jnp.concatenate([prefix, decoded], axis=-1)
      flat = rows.reshape(batch * beam, -1)
      flat = sequence_alignment.shift_rows(flat, -num_padding, fill=fill)
      return flat.reshape(rows.shape)

    ids = decoded(state.output_ids + offset, state.end_eos_ids, 0)
    logprobs = decoded(
      state.logprobs, state.end_eos_logprobs, decode_loop.NO_LOGPROB
    )
    prefix_ids = jnp.repeat(self.prefix_ids[:, jnp.newaxis], beam, axis=1)
    prefix_logprobs = jnp.full(prefix_ids.shape, decode_loop.NO_LOGPROB)
    lengths = jnp.broadcast_to(self.prefix_lengths[:, None], (batch, beam))
    left_aligned_prefix = sequence_alignment.left_align_tensor(
      self.prefix_ids, self.prefix_lengths, prefix_len
    )
    return NestedMap(
      output_ids=left_align(prefix_ids, ids, 0),
      logprobs=left_align(prefix_logprobs, logprobs, decode_loop.NO_LOGPROB),
      scores=state.end_scores_norm,
      decode_lengths=lengths + jnp.where(exists, end_position, 0),
      done=state.done,
      prefix_ids=left_aligned_prefix[:, jnp.newaxis],
      prefix_lengths=lengths,
      original_lengths=lengths,
    )

  def _update_finished(
    self, state: NestedMap, expansion: hypotheses.Expansion
  ) -> None:
    """Updates the K best finished hypotheses in `state`."""
    candidates = {
      'end_mask': state.beam_mask,
      'end_scores': state.hyp_scores + expansion.end_logprobs,
      'end_scores_norm': expansion.end_scores,
      'end_eos_ids': expansion.end_ids,
      'end_eos_logprobs': expansion.end_logprobs,
    }
    best = hypotheses.keep_best(
      tuple(state[name] for name in candidates), tuple(candidates.values())
    )
    state.update(zip(candidates, best, strict=True))

  def _atten_mask(
    self, beam_mask: Float[Array, 'B K M'], step: Int[Array, ''] | int
  ) -> Float[Array, 'B 1 K S']:
    """Returns the additive mask of padding and of other hypotheses' tokens.

    Before an empty prompt is padding, which only the first step sees.

    Args:
      beam_mask: the tokens of each hypothesis.
      step: the decode step.
    """
    beam = beam_mask.shape[1]
    num_before = self.prefix_ids.shape[1] - 1
    first_token = num_before + 1 - self.prefix_lengths
    is_prompt = jnp.arange(num_before) >= first_token[:, jnp.newaxis]
    is_prompt = jnp.repeat(is_prompt[:, jnp.newaxis], beam, axis=1)
    is_own_token = beam_mask[:, :, : beam * self._max_steps] > 0
    is_padding = (self.prefix_lengths == 0) & (step > 0)
    is_first_token = jnp.arange(is_own_token.shape[-1]) < beam
    is_own_token &= ~(is_padding[:, jnp.newaxis, jnp.newaxis] & is_first_token)
    is_visible = jnp.concatenate([is_prompt, is_own_token], axis=-1)
    masked = py_utils.get_large_negative_number(jnp.float32)
    return jnp.where(is_visible, 0.0, masked)[:, jnp.newaxis]

  @property
  def _max_steps(self) -> int:
    steps = self.hparams.decode_steps()
    if not steps or self.hparams.beam_size < 1:
      raise ValueError(
        'max_decode_steps and beam_size must be > 0 in a beam search, got '
        f'{self.hparams.max_decode_steps} and {self.hparams.beam_size}'
      )
    return steps[-1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlatBeamSearchFromLastToken(FlatBeamSearch):
  """Flat beam search that reads no more than the last token of the prompts.

  Scores are sums of logits, and the result starts with that token.
  """

  # The upper bound of decode_lengths.
  max_length: int

  @classmethod
  def create(
    cls,
    fns: model_fns.ModelFns,
    hparams: FlatBeamSearchHParams,
    prompt_ids: Int[Array, 'B P'],
    seq_len: int,
    dtype: jax.typing.DTypeLike = jnp.float32,
  ) -> FlatBeamSearchFromLastToken:
    """Returns the search for results of `seq_len` columns.

    Args:
      fns: the functions of the model.
      hparams: its max_decode_steps bounds decode_lengths.
      prompt_ids: the prompts; their last column is read.
      seq_len: number of columns of the result.
      dtype: of masks and scores.

    Raises:
      ValueError: seq_len is not positive.
    """
    if seq_len <= 0:
      raise ValueError(
        'The sequence length for decoding must be > 0, current value = '
        f'{seq_len}'
      )
    limits = hparams.decode_steps()
    hparams = hparams.clone()
    hparams.max_decode_steps = seq_len - 1
    return cls(
      fns=fns,
      hparams=hparams,
      prefix_ids=prompt_ids[:, -1:],
      prefix_lengths=jnp.ones(prompt_ids.shape[0], jnp.int32),
      dtype=dtype,
      token_scores=lambda logits: logits,
      max_length=limits[-1] if limits else seq_len,
    )

  def result(self, state: NestedMap) -> NestedMap:
    """Returns the finished hypotheses; see `flat_beam_search`."""
    names = ['step', 'done', 'output_ids', 'beam_mask', 'hyp_scores']
    names += ['end_mask', 'end_scores', 'end_scores_norm']
    return post_process(
      NestedMap({name: state[name] for name in names}),
      state.end_eos_ids[..., jnp.newaxis],
      self.max_length,
    )


def flat_beam_search(
  model: Any,
  extend_step_fn: model_fns.ExtendStepFn | model_fns.ExpandedExtendStepFn,
  prefix_ids: Int[Array, 'B P'],
  prefix_paddings: Float[Array, 'B P'],
  seq_len: int,
  beam_size: int,
  fprop_dtype: jax.typing.DTypeLike = 'float32',
  max_decode_steps: int | None = None,
  eos_id: int | Sequence[int] = 2,
  length_norm_alpha: float = 0.8,
) -> NestedMap:
  """Returns the best continuations of the last tokens of prompts.

  Args:
    model: bound, with a mutable DECODE_CACHE. Its states have room for
      beam_size * (seq_len - 1) tokens.
    extend_step_fn: fn(model, ids [B, K], None) returns logits [B, K, V] or
      [B * K, V]. A fourth argument is the state of the loop, with
      the attention mask `atten_mask` [B, 1, K, S] of the hypotheses.
    prefix_ids: the prompts; only their last column is read.
    prefix_paddings: not used.
    seq_len: number of columns of the result, the first of which is the last of
      the prompts.
    beam_size: number of hypotheses and of results.
    fprop_dtype: the dtype of masks and scores.
    max_decode_steps: the upper bound of decode_lengths; None: seq_len.
    eos_id: one or several end-of-sequence ids.
    length_norm_alpha: the exponent of `hypotheses.length_norm`.

  Returns:
    output_ids [B, K, T], decode_lengths and scores [B, K] of the results,
    normalized sums of logits; and from the state of the loop beam_mask and
    end_mask [B, K, K * T], hyp_scores and end_scores [B, K].
  """
  del prefix_paddings
  extend_step = model_fns.coerce_to_expanded_extend_step_fn(extend_step_fn)
  search = FlatBeamSearchFromLastToken.create(
    model_fns.ModelFns(
      extend_step=lambda model, ids, _, state: extend_step(
        model, ids, None, state
      )
    ),
    FlatBeamSearchHParams(
      beam_size=beam_size,
      max_decode_steps=max_decode_steps,
      eos_id=eos_id,
      length_norm_alpha=length_norm_alpha,
    ),
    prefix_ids,
    seq_len,
    fprop_dtype,
  )
  return search.result(search.run_loop(model))
