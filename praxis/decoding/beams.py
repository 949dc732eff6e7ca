# SPDX-License-Identifier: Apache-2.0
"""Beam search: the K best unfinished texts of a prompt go on at every step.

The state of the loop has for R = B * K rows and T columns: step, start_step,
segment_pos [R], output_ids and logprobs [B, K, T], hyp_scores and hyp_ids
[B, K] (where each hypothesis comes from), done [B], and the finished texts:
end_ids, end_logprobs [B, K, T], end_decode_lengths, end_scores_norm [B, K].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from praxis.decoding import alignment, hypotheses, loop, meshes, states
from praxis.decoding.hparams import BeamSearchHParams
from praxis.nested_map import NestedMap

# fn(logits, model, ids, segment_pos, state) -> logprobs
ComputeLogprobsFn = Callable[
  [Array, Any, Array, Array, NestedMap], Float[Array, 'R V']
]


def default_compute_logprobs_fn(
  logits: Float[Array, 'R V'],
  model: Any,
  extend_ids: Int[Array, 'R'],
  segment_pos: Int[Array, 'R'],
  decode_loop_state: NestedMap,
) -> Float[Array, 'R V']:
  """Returns log_softmax of the logits."""
  del model, extend_ids, segment_pos, decode_loop_state
  return jax.nn.log_softmax(logits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
  """A beam search of one kind of prompts; calling it does one step."""

  steps: loop.Steps
  hparams: BeamSearchHParams
  # The prompts, at the right end of their columns.
  prefix_ids: Int[Array, 'B P']
  prefix_lengths: Int[Array, 'B']
  compute_logprobs: ComputeLogprobsFn = default_compute_logprobs_fn

  def __post_init__(self) -> None:
    if self.hparams.beam_size < 1:
      raise ValueError(f'beam_size must be >= 1, got {self.hparams.beam_size}')
    if not self.hparams.decode_steps():
      raise ValueError(
        'max_decode_steps must be > 0 in a beam search, got None'
      )

  def first_state(self) -> NestedMap:
    """Returns the state that the loop starts with."""
    batch, columns = self.prefix_ids.shape
    beam, length = self.hparams.beam_size, columns + self._max_steps()
    shape = (batch, beam, length)
    ids = jnp.pad(self.prefix_ids, [(0, 0), (0, length - columns)])
    ids = broadcast_beam_dim(ids, 1, beam)
    lengths = broadcast_beam_dim(self.prefix_lengths, 1, beam)
    blank = jnp.full(shape, loop.NO_LOGPROB, jnp.float32)
    return NestedMap(
      step=columns - 1,
      start_step=columns - 1,
      segment_pos=lengths.reshape(-1) - 1,
      output_ids=ids,
      logprobs=blank,
      hyp_scores=hypotheses.first_scores(batch, beam),
      hyp_ids=jnp.zeros((batch, beam), jnp.int32),
      done=jnp.zeros(batch, bool),
      end_ids=ids,
      end_decode_lengths=lengths,
      end_scores_norm=jnp.full((batch, beam), hypotheses.NO_SCORE),
      end_logprobs=blank,
    )

  def prepare_states(self, model: Any) -> None:
    """Gives caches a row for each hypothesis, and room for the first steps."""
    steps, beam = self.steps, self.hparams.beam_size
    room = self.hparams.decode_steps()[0]
    if steps.lazy_broadcast_prefix is not None:
      # The last token of the prompt is the first that steps read.
      steps.transform(model, states.slice_state_fn(0, -1))
      steps.lazy_broadcast_prefix(model, beam, room)
      return
    steps.transform(model, states.pad_state_fn(room))
    steps.transform(model, states.batch_broadcast_state_fn(beam))

  def __call__(self, model: Any, state: NestedMap) -> NestedMap:
    """Returns the state after one more token of every hypothesis."""
    state = NestedMap(state)
    batch, beam = state.hyp_scores.shape
    ids = state.output_ids[:, :, state.step].reshape(-1)
    logits = self.steps.logits(model, ids, state.segment_pos, state)
    logprobs = self.compute_logprobs(
      logits, model, ids, state.segment_pos, state
    ).reshape(batch, beam, -1)
    step = state.step + 1
    expansion = hypotheses.expand(
      logprobs, state.hyp_scores, step - state.start_step, self.hparams
    )
    self._keep_ended(state, expansion)
    parents = expansion.parents
    self.steps.transform(model, self._shuffle_fn(parents))
    offset = self.hparams.output_id_offset
    state.update(
      output_ids=hypotheses.take_hypotheses(state.output_ids, parents)
      .at[:, :, step]
      .set(expansion.ids + offset),
      logprobs=hypotheses.take_hypotheses(state.logprobs, parents)
      .at[:, :, step]
      .set(expansion.logprobs),
      hyp_scores=expansion.scores,
      hyp_ids=parents,
      step=step,
      segment_pos=state.segment_pos + 1,
    )
    state.done = hypotheses.is_decided(
      state.hyp_scores, state.end_scores_norm, self._max_steps(), self.hparams
    )
    return state

  def result(self, state: NestedMap) -> NestedMap:
    """Returns the finished texts, the best first; see `search`."""
    batch, columns = self.prefix_ids.shape
    beam = self.hparams.beam_size
    starts = jnp.repeat(columns - self.prefix_lengths, beam)

    def to_left(x: Array, fill: float) -> Array:
      rows = x.reshape(batch * beam, -1)
      return alignment.shift_rows(rows, -starts, fill=fill).reshape(x.shape)

    lengths = broadcast_beam_dim(self.prefix_lengths, 1, beam)
    prefix = alignment.left_align_tensor(
      self.prefix_ids, self.prefix_lengths, columns
    )
    return NestedMap(
      output_ids=to_left(state.end_ids, 0),
      logprobs=to_left(state.end_logprobs, loop.NO_LOGPROB),
      scores=state.end_scores_norm,
      decode_lengths=state.end_decode_lengths,
      done=state.end_scores_norm > hypotheses.NO_SCORE / 2,
      prefix_ids=prefix[:, jnp.newaxis],
      prefix_lengths=lengths,
      original_lengths=lengths,
    )

  def _keep_ended(
    self, state: NestedMap, expansion: hypotheses.Expansion
  ) -> None:
    step = state.step + 1
    offset = self.hparams.output_id_offset
    ended = (
      state.output_ids.at[:, :, step].set(expansion.end_ids + offset),
      self.prefix_lengths[:, None]
      + jnp.broadcast_to(step - state.start_step, state.hyp_ids.shape),
      expansion.end_scores,
      state.logprobs.at[:, :, step].set(expansion.end_logprobs),
    )
    names = 'end_ids', 'end_decode_lengths', 'end_scores_norm', 'end_logprobs'
    kept = hypotheses.keep_best(tuple(state[name] for name in names), ended)
    state.update(zip(names, kept, strict=True))

  def _shuffle_fn(self, parents: Int[Array, 'B K']) -> states.StateFn:
    """Gives each hypothesis the caches of the one it comes from."""
    use_matmul = self.hparams.use_matmul_beam_shuffle
    has_axis = self.steps.lazy_broadcast_prefix is not None

    def shuffle(x: Array, batch_dim: int, time_dim: int) -> Array:
      del time_dim
      if batch_dim < 0:
        return x
      if has_axis:
        return shuffle_state(x, parents, use_matmul)
      split = x.reshape(*parents.shape, *x.shape[1:])
      return shuffle_state(split, parents, use_matmul).reshape(x.shape)

    return shuffle

  def _max_steps(self) -> int:
    return self.hparams.decode_steps()[-1]


def search(
  model: Any,
  beam_search: Search,
  *,
  decode_loop_mesh_axes_transpose: dict[str, str] | None = None,
  model_var_pspecs: Any = None,
) -> NestedMap:
  """Returns the K best texts of each prompt that an ending token finished.

  Returns:
    output_ids [B, K, T] (prompt and continuation at the left, 0 after it),
    decode_lengths [B, K], logprobs [B, K, T] (1.0 where no token was
    generated), scores [B, K], done [B, K] (whether there are so many),
    prefix_ids [B, 1, P], prefix_lengths and original_lengths [B, K].
  """
  steps, axes = beam_search.steps, decode_loop_mesh_axes_transpose
  hparams = beam_search.hparams
  if steps.fprop is not None:
    ids = beam_search.prefix_ids
    column = jnp.arange(ids.shape[1])[::-1]
    is_padding = column >= beam_search.prefix_lengths[:, jnp.newaxis]
    steps.fprop(model, ids, is_padding.astype(jnp.float32))
  model = meshes.maybe_reshard_mdl_for_decode(
    model, axes, model_var_pspecs, steps.transform
  )
  with meshes.maybe_decode_mesh_transpose(model, axes):
    beam_search.prepare_states(model)
    state = loop.run_buckets(
      model,
      steps,
      beam_search,
      beam_search.first_state(),
      hparams.decode_steps(),
      loop.all_done if hparams.early_exit else None,
    )
    result = beam_search.result(state)
    if hparams.process_result_fn is not None:
      result = hparams.process_result_fn(model, result)
  return result


def shuffle_state(
  x: Shaped[Array, '...'],
  hyp_id: Int[Array, 'B K'],
  use_one_hot_matmul: bool = False,
) -> Shaped[Array, '...']:
  """Returns x[b, hyp_id[b, k]]; x itself if it has no axis of hypotheses."""
  if not isinstance(x, jax.Array) or x.ndim < 2:
    return x
  if use_one_hot_matmul:
    one_hot = jax.nn.one_hot(hyp_id, hyp_id.shape[1], dtype=x.dtype)
    return jnp.einsum('bk...,bjk->bj...', x, one_hot, precision='highest')
  return hypotheses.take_hypotheses(x, hyp_id)


def broadcast_beam_dim(
  x: Shaped[Array, '...'], beam_dim: int, beam_size: int
) -> Shaped[Array, '...']:
  """Returns so many copies of x on a new axis."""
  return jnp.repeat(jnp.expand_dims(x, beam_dim), beam_size, axis=beam_dim)
