# SPDX-License-Identifier: Apache-2.0
"""The loop that extends sequences token by token, with cached states.

A prompt is read in one of two ways. Token by token, it stands at the left of
its row and the loop starts at column 0. At once, it is moved to the right end
of the prompt's columns, so that all rows generate in the same columns, and
the loop starts at the prompt's last column.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from praxis import base_layer
from praxis.decoding import samplers
from praxis.decoding.hparams import (
  DecoderHParams,
  GreedyDecoderHParams,
  SampleDecoderHParams,
)
from praxis.nested_map import NestedMap
from praxis.pytypes import PRNGKey

# Stands in logprobs where no token was generated.
NO_LOGPROB = 1.0


class Decodable(Protocol):
  """What the loop needs of a language model, a bound flax module."""

  def __call__(self, inputs: Array, paddings: Array, **kwargs: Any) -> Any: ...

  def extend_step(
    self, inputs: Array, segment_pos: Array | None = None
  ) -> NestedMap: ...

  def transform_decode_state(
    self, transform_fn: Callable[[Array, int, int], Array]
  ) -> None: ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompts:
  """Texts to continue, one a row."""

  # Tokens at the left of each row.
  ids: Int[Array, 'B P']
  # How many of a row are tokens.
  lengths: Int[Array, 'B']
  # 1 for tokens that all of the prompt sees, in a prefix model.
  inputs_indicator: Num[Array, 'B P'] | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class _State:
  """What the loop changes; rows are prompts times samples."""

  # The column that is read next.
  step: Int[Array, '']
  ids: Int[Array, 'R T']
  logprobs: Float[Array, 'R T']
  done: Bool[Array, 'R']
  # Column after the last one that counts.
  ends: Int[Array, 'R']


@dataclasses.dataclass(frozen=True)
class _Plan:
  """What the loop knows beforehand."""

  hparams: DecoderHParams
  sampler: samplers.BaseNextTokenSampler
  temperature: float
  key: PRNGKey
  # Where each row's prompt starts, and the column after its last token.
  starts: Int[Array, 'R']
  prompt_ends: Int[Array, 'R']

  def is_end(self, ids: Int[Array, 'R']) -> Bool[Array, 'R']:
    eos = self.hparams.eos_id
    stops = eos if isinstance(eos, Sequence) else [eos]
    return jnp.isin(ids, jnp.asarray(stops))


def sample_decode(
  model: Decodable, prompts: Prompts, hparams: DecoderHParams, key: PRNGKey
) -> NestedMap:
  """Returns continuations of `prompts`, by the algorithm `hparams` stands for.

  Call it where DECODE_CACHE is mutable.

  Returns:
    output_ids [B, N, T] (prompt and continuation at the left, 0 after it),
    decode_lengths [B, N] (of both, the ending token included), logprobs
    [B, N, T] (1.0 where no token was generated), prefix_ids [B, P] and
    prefix_lengths [B], for N samples.

  Raises:
    ValueError: `hparams` say no length, or the prompt is longer than it.
    NotImplementedError: `hparams` are of an unknown algorithm.
  """
  settings = _settings(hparams)
  num_samples = settings.num_samples
  length = _length(prompts, hparams)
  if hparams.fprop_for_prefix:
    starts, first_step = _read_at_once(model, prompts)
    ids = right_align(prompts.ids, prompts.lengths)
    cached = prompts.ids.shape[1]
  else:
    first_step, cached = 0, 1
    starts = jnp.zeros_like(prompts.lengths)
    ids = prompts.ids
    _start_empty(model, prompts)
  model.transform_decode_state(_repeat_and_pad(num_samples, length - cached))

  repeat = lambda x: jnp.repeat(x, num_samples, axis=0)
  plan = _Plan(
    hparams=hparams,
    sampler=settings.next_token_sampler_tpl.Instantiate(),
    temperature=settings.temperature,
    key=key,
    starts=repeat(starts),
    prompt_ends=repeat(starts + prompts.lengths),
  )
  state = _run(model, plan, _first_state(plan, repeat(ids), first_step, length))
  return _result(prompts, plan, state, settings)


def right_align(
  ids: Int[Array, 'B P'], lengths: Int[Array, 'B']
) -> Int[Array, 'B P']:
  """Returns the first `lengths` of each row moved to its end, 0 before."""
  column = jnp.arange(ids.shape[1])[None]
  source = column - (ids.shape[1] - lengths)[:, None]
  moved = jnp.take_along_axis(ids, jnp.maximum(source, 0), axis=1)
  return jnp.where(source >= 0, moved, 0)


def _settings(hparams: DecoderHParams) -> SampleDecoderHParams:
  """Returns `hparams` as those of sampling: greedy draws from the top 1."""
  if type(hparams) is GreedyDecoderHParams:
    settings = SampleDecoderHParams(k=1, temperature=0.0)
  elif isinstance(hparams, SampleDecoderHParams):
    settings = hparams.clone()
  else:
    raise NotImplementedError(
      f'no decoder for {type(hparams).__name__}; use GreedyDecoderHParams or '
      'SampleDecoderHParams'
    )
  if settings.override_next_token_sampler_params:
    settings.next_token_sampler_tpl.set(top_k=settings.k, top_p=settings.p)
  return settings


def _length(prompts: Prompts, hparams: DecoderHParams) -> int:
  """Returns the number of columns of the result."""
  prompt = prompts.ids.shape[1]
  if hparams.fprop_for_prefix:
    if not hparams.max_decode_steps:
      raise ValueError(
        'max_decode_steps must be > 0 with fprop_for_prefix, got '
        f'{hparams.max_decode_steps}'
      )
    return prompt + hparams.max_decode_steps
  if hparams.seqlen <= 0:
    raise ValueError(
      f'Must set p.decoder_tpl.seqlen > 0, got {hparams.seqlen}; it is the '
      'length of prompt and continuation'
    )
  if hparams.seqlen < prompt:
    raise ValueError(
      f'decoder_tpl.seqlen must be at least {prompt}, the length of the '
      f'prompts, got {hparams.seqlen}'
    )
  if prompts.inputs_indicator is not None:
    raise ValueError(
      'a prefix model sees its prompt at once; set fprop_for_prefix=True and '
      'max_decode_steps'
    )
  return hparams.seqlen


def _read_at_once(
  model: Decodable, prompts: Prompts
) -> tuple[Int[Array, 'B'], int]:
  """Caches the prompts; returns where they start, and the last column."""
  columns = prompts.ids.shape[1]
  starts = columns - prompts.lengths
  position = jnp.arange(columns)[None] - starts[:, None]
  is_token = position >= 0
  visible = {}
  if prompts.inputs_indicator is not None:
    indicator = prompts.inputs_indicator.astype(jnp.int32)
    indicator = right_align(indicator, prompts.lengths)
    visible['causal_attention_mask'] = 1 - indicator
  model(
    right_align(prompts.ids, prompts.lengths),
    1.0 - is_token.astype(jnp.float32),
    segment_ids=is_token.astype(jnp.int32),
    segment_pos=jnp.maximum(position, 0),
    start_time_step=columns - 1,
    **visible,
  )
  return starts, columns - 1


def _start_empty(model: Decodable, prompts: Prompts) -> None:
  """Makes caches of one column, which the first step overwrites."""
  nothing = jnp.zeros_like(prompts.ids[:, :1])
  model(nothing, jnp.ones(nothing.shape, jnp.float32))


def _repeat_and_pad(
  num_samples: int, num_columns: int
) -> Callable[[Array, int, int], Array]:
  """Returns what gives each sample a row, and time room for the rest."""

  def transform(x: Array, batch_dim: int, time_dim: int) -> Array:
    if batch_dim >= 0 and num_samples > 1:
      x = jnp.repeat(x, num_samples, axis=batch_dim)
    if time_dim >= 0:
      widths = [(0, 0)] * x.ndim
      widths[time_dim] = (0, num_columns)
      x = jnp.pad(x, widths)
    return x

  return transform


def _first_state(
  plan: _Plan, ids: Int[Array, 'R P'], first_step: int, length: int
) -> _State:
  rows, columns = ids.shape
  return _State(
    step=jnp.asarray(first_step, jnp.int32),
    ids=jnp.pad(ids, [(0, 0), (0, length - columns)]),
    logprobs=jnp.full((rows, length), NO_LOGPROB, jnp.float32),
    done=jnp.zeros(rows, bool),
    ends=plan.prompt_ends,
  )


def _run(model: Decodable, plan: _Plan, state: _State) -> _State:
  last = state.ids.shape[1] - 1
  early = getattr(plan.hparams, 'early_exit', True)

  def unfinished(model: Decodable, state: _State) -> Bool[Array, '']:
    del model
    more = state.step < last
    return more & ~jnp.all(state.done) if early else more

  return nn.while_loop(
    unfinished,
    lambda model, state: _extend(model, plan, state),
    model,
    state,
    carry_variables=base_layer.DECODE_CACHE,
    broadcast_variables=True,
  )


def _extend(model: Decodable, plan: _Plan, state: _State) -> _State:
  """Fills one more column: with the prompt where it goes on, or a new token."""
  ids = jax.lax.dynamic_index_in_dim(state.ids, state.step, 1, keepdims=False)
  logits = model.extend_step(ids, segment_pos=state.step - plan.starts).logits
  logits = logits.astype(jnp.float32)
  key = jax.random.fold_in(plan.key, state.step)
  drawn = plan.sampler(logits, key, plan.temperature)
  logprob = jnp.take_along_axis(
    jax.nn.log_softmax(logits), drawn[:, None], axis=1
  )[:, 0]

  column = state.step + 1
  in_prompt = column < plan.prompt_ends
  given = jax.lax.dynamic_index_in_dim(state.ids, column, 1, keepdims=False)
  is_new = ~in_prompt & ~state.done
  new_ids = jnp.where(in_prompt, given, jnp.where(is_new, drawn, 0))
  generated = column + 1 - plan.prompt_ends
  ended = plan.is_end(drawn) & (generated >= plan.hparams.min_decode_steps)
  if plan.hparams.max_decode_steps:
    ended |= generated >= plan.hparams.max_decode_steps
  return _State(
    step=column,
    ids=_set_column(state.ids, column, new_ids),
    logprobs=_set_column(
      state.logprobs, column, jnp.where(is_new, logprob, NO_LOGPROB)
    ),
    done=state.done | (is_new & ended),
    ends=jnp.where(is_new, column + 1, state.ends),
  )


def _set_column(x: Array, column: Array, values: Array) -> Array:
  return jax.lax.dynamic_update_index_in_dim(x, values, column, 1)


def _result(
  prompts: Prompts, plan: _Plan, state: _State, settings: SampleDecoderHParams
) -> NestedMap:
  """Moves the rows to the left, and gives samples a dimension."""
  length = state.ids.shape[1]
  column = jnp.arange(length)[None] + plan.starts[:, None]
  inside = column < state.ends[:, None]
  shift = lambda x: jnp.take_along_axis(
    x, jnp.minimum(column, length - 1), axis=1
  )
  split = lambda x: x.reshape(-1, settings.num_samples, *x.shape[1:])
  samples = NestedMap(
    output_ids=split(jnp.where(inside, shift(state.ids), 0)),
    logprobs=split(jnp.where(inside, shift(state.logprobs), NO_LOGPROB)),
    decode_lengths=split(state.ends - plan.starts),
  )
  if settings.sort_samples and settings.num_samples > 1:
    samples = _sorted(samples)
  return NestedMap(
    prefix_ids=prompts.ids, prefix_lengths=prompts.lengths, **samples
  )


def _sorted(samples: NestedMap) -> NestedMap:
  """Orders samples by their total log-probability, the highest first."""
  logprobs = samples.logprobs
  score = jnp.sum(jnp.where(logprobs == NO_LOGPROB, 0.0, logprobs), axis=-1)
  order = jnp.argsort(-score, axis=1)

  def reorder(x: Array) -> Array:
    index = order.reshape(order.shape + (1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, index, axis=1)

  return jax.tree.map(reorder, samples)
