# SPDX-License-Identifier: Apache-2.0
"""Beam search over the K best live hypotheses of each prompt.

The state of the decode loop has, for R = B * K rows and T columns: step,
start_step, segment_pos [R]; of the live hypotheses output_ids and logprobs
[B, K, T], hyp_scores, hyp_ids (the index of the parent) and done (whether it
has an end-of-sequence token) [B, K]; and of the finished hypotheses end_ids and
end_logprobs [B, K, T], end_decode_lengths and end_scores_norm [B, K].

References: Sequence to Sequence Learning with Neural Networks, section 3.2,
https://arxiv.org/abs/1409.3215
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from praxis import py_utils
from praxis.decoding import (
  decode_loop,
  hypotheses,
  mesh_transpose,
  model_fns,
  sequence_alignment,
  state_transforms,
)
from praxis.decoding.hparams import BeamSearchHParams
from praxis.nested_map import NestedMap

# fn(logits, model, ids, segment_pos, decode_loop_state) -> logprobs
ComputeLogprobsFn = Callable[
  [Array, Any, Array, Array, NestedMap], Float[Array, 'R V']
]
# (ids [B, K, T], lengths [B, K], scores [B, K], logprobs [B, K, T])
GlobalBeam = tuple[Array, Array, Array, Array]


def default_compute_logprobs_fn(
  logits: Float[Array, 'R V'],
  model: Any,
  extend_ids: Int[Array, ' R'],
  segment_pos: Int[Array, ' R'],
  decode_loop_state: NestedMap,
) -> Float[Array, 'R V']:
  """Returns log_softmax(logits).

  Args:
    logits: of the next token.
    model: unused.
    extend_ids: unused.
    segment_pos: unused.
    decode_loop_state: unused.
  """
  del model, extend_ids, segment_pos, decode_loop_state
  return jax.nn.log_softmax(logits)


@runtime_checkable
class SearchAlgorithm(Protocol):
  """A beam search: what `run_search` needs of it."""

  @property
  def fns(self) -> model_fns.ModelFns:
    """The functions of the model."""

  @property
  def hparams(self) -> BeamSearchHParams:
    """The settings."""

  @property
  def prefix_ids(self) -> Int[Array, 'B P']:
    """The right-aligned prompts."""

  @property
  def prefix_lengths(self) -> Int[Array, ' B']:
    """The numbers of tokens of the prompts."""

  def prepare_states(self, model: Any) -> None:
    """Expands the model's decode states from prompts to hypotheses."""

  def run_loop(self, model: Any) -> NestedMap:
    """Returns the final state of the decode loop."""

  def result(self, state: NestedMap) -> NestedMap:
    """Returns the result from the final state; see `run_search`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamSearch:
  """Beam search that reorders the KV caches; the body of its decode loop."""

  fns: model_fns.ModelFns
  hparams: BeamSearchHParams
  # Right-aligned.
  prefix_ids: Int[Array, 'B P']
  prefix_lengths: Int[Array, ' B']
  compute_logprobs: ComputeLogprobsFn = default_compute_logprobs_fn

  def __post_init__(self) -> None:
    if self.hparams.beam_size < 1:
      raise ValueError(f'beam_size must be >= 1, got {self.hparams.beam_size}')
    if not self.hparams.decode_steps():
      raise ValueError(
        'max_decode_steps must be > 0 in a beam search, got None'
      )

  def initial_state(self) -> NestedMap:
    """Returns the initial state of the decode loop."""
    batch, prefix_len = self.prefix_ids.shape
    beam, seq_len = self.hparams.beam_size, prefix_len + self._max_steps
    shape = (batch, beam, seq_len)
    ids = jnp.pad(self.prefix_ids, [(0, 0), (0, seq_len - prefix_len)])
    ids = broadcast_beam_dim(ids, 1, beam)
    lengths = broadcast_beam_dim(self.prefix_lengths, 1, beam)
    logprobs = jnp.full(shape, decode_loop.NO_LOGPROB, jnp.float32)
    return NestedMap(
      step=prefix_len - 1,
      start_step=prefix_len - 1,
      segment_pos=lengths.reshape(-1) - 1,
      output_ids=ids,
      logprobs=logprobs,
      hyp_scores=hypotheses.initial_scores(batch, beam),
      hyp_ids=jnp.zeros((batch, beam), jnp.int32),
      done=jnp.zeros((batch, beam), bool),
      end_ids=ids,
      end_decode_lengths=jnp.full_like(lengths, seq_len),
      end_scores_norm=jnp.full((batch, beam), hypotheses.NO_SCORE),
      end_logprobs=jnp.zeros_like(logprobs),
    )

  def prepare_states(self, model: Any) -> None:
    """Adds room for the first bucket of steps, and a row per hypothesis."""
    fns, beam = self.fns, self.hparams.beam_size
    num_steps = self.hparams.decode_steps()[0]
    if fns.lazy_broadcast_prefix is not None:
      # The first decode step reads the last token of the prompt again.
      fns.transform(model, state_transforms.slice_state_fn(0, -1))
      fns.lazy_broadcast_prefix(model, beam, num_steps)
      return
    fns.transform(model, state_transforms.pad_state_fn(num_steps))
    fns.transform(model, state_transforms.batch_broadcast_state_fn(beam))

  def run_loop(self, model: Any) -> NestedMap:
    """Returns the final state of the decode loop."""
    return decode_loop.run_buckets(
      model,
      self.fns,
      self,
      self.initial_state(),
      self.hparams.decode_steps(),
      decode_loop.all_done if self.hparams.early_exit else None,
    )

  def __call__(self, model: Any, state: NestedMap) -> NestedMap:
    """Returns the state after one more token of every hypothesis."""
    state = NestedMap(state)
    batch, beam = state.hyp_scores.shape
    ids = state.output_ids[:, :, state.step].reshape(-1)
    logits = self.fns.logits(model, ids, state.segment_pos, state)
    logprobs = self.compute_logprobs(
      logits, model, ids, state.segment_pos, state
    ).reshape(batch, beam, -1)
    step = state.step + 1
    expansion = hypotheses.expand(
      logprobs, state.hyp_scores, step - state.start_step, self.hparams
    )
    self._update_finished(state, expansion)
    parents = expansion.parents
    self.fns.transform(model, self._reorder_fn(parents))
    new_ids = expansion.ids + self.hparams.output_id_offset
    state.update(
      output_ids=hypotheses.gather_hypotheses(state.output_ids, parents)
      .at[:, :, step]
      .set(new_ids),
      logprobs=hypotheses.gather_hypotheses(state.logprobs, parents)
      .at[:, :, step]
      .set(expansion.logprobs),
      hyp_scores=expansion.scores,
      hyp_ids=parents,
      done=hypotheses.update_done(
        state.done, parents, new_ids, self.hparams.eos_id
      ),
      step=step,
      segment_pos=state.segment_pos + 1,
    )
    return state

  def result(self, state: NestedMap) -> NestedMap:
    """Returns the finished hypotheses, the best first; see `run_search`."""
    batch, prefix_len = self.prefix_ids.shape
    beam = self.hparams.beam_size
    num_padding = jnp.repeat(prefix_len - self.prefix_lengths, beam)

    def left_align(x: Array, fill: float) -> Array:
      rows = x.reshape(batch * beam, -1)
      rows = sequence_alignment.shift_rows(rows, -num_padding, fill=fill)
      return rows.reshape(x.shape)

    lengths = broadcast_beam_dim(self.prefix_lengths, 1, beam)
    prefix_ids = sequence_alignment.left_align_tensor(
      self.prefix_ids, self.prefix_lengths, prefix_len
    )
    return NestedMap(
      output_ids=left_align(state.end_ids, 0),
      logprobs=left_align(state.end_logprobs, decode_loop.NO_LOGPROB),
      scores=state.end_scores_norm,
      decode_lengths=state.end_decode_lengths,
      done=state.done,
      prefix_ids=prefix_ids[:, jnp.newaxis],
      prefix_lengths=lengths,
      original_lengths=lengths,
    )

  @property
  def _max_steps(self) -> int:
    return self.hparams.decode_steps()[-1]

  def _update_finished(
    self, state: NestedMap, expansion: hypotheses.Expansion
  ) -> None:
    """Updates the K best finished hypotheses in `state`."""
    step = state.step + 1
    candidates = (
      state.output_ids.at[:, :, step].set(expansion.end_ids),
      self.prefix_lengths[:, None]
      + jnp.broadcast_to(step - state.start_step, state.hyp_ids.shape),
      expansion.end_scores,
      state.logprobs.at[:, :, step].set(expansion.end_logprobs),
    )
    names = 'end_ids', 'end_decode_lengths', 'end_scores_norm', 'end_logprobs'
    best = hypotheses.keep_best(
      tuple(state[name] for name in names), candidates
    )
    state.update(zip(names, best, strict=True))

  def _reorder_fn(
    self, parents: Int[Array, 'B K']
  ) -> state_transforms.StateTransform:
    """Gives each hypothesis the decode states of its parent.

    With a lazily shared prefix, states with a time dimension have an axis of
    hypotheses before it; others have a row per hypothesis.
    """
    use_matmul = self.hparams.use_matmul_beam_shuffle
    has_beam_dim = self.fns.lazy_broadcast_prefix is not None

    def reorder(x: Array, batch_dim: int, time_dim: int) -> Array:
      if batch_dim < 0:
        return x
      if has_beam_dim and time_dim >= 0:
        return shuffle_state(x, parents, use_matmul)
      by_hypothesis = x.reshape(*parents.shape, *x.shape[1:])
      return shuffle_state(by_hypothesis, parents, use_matmul).reshape(x.shape)

    return reorder


def run_search(
  model: Any,
  search: SearchAlgorithm,
  *,
  decode_loop_mesh_axes_transpose: dict[str, str] | None = None,
  model_var_pspecs: Any = None,
) -> NestedMap:
  """Prefills the prompts, runs the search and returns the K best results.

  Args:
    model: bound, with a mutable DECODE_CACHE.
    search: the algorithm.
    decode_loop_mesh_axes_transpose: mesh axes inside the loop, see
      `mesh_transpose`.
    model_var_pspecs: PartitionSpecs of the model's variables; needed with a
      transpose.

  Returns:
    output_ids [B, K, T] (prompt and continuation, left-aligned, padded with 0),
    decode_lengths [B, K] (of both), logprobs [B, K, T] (NO_LOGPROB where no
    token is generated), scores [B, K] (about -1e9 where there is no result),
    done [B, K] (whether the live hypotheses, not the results, have an
    end-of-sequence token), prefix_ids [B, 1, P], prefix_lengths and
    original_lengths [B, K].
  """
  fns, axes = search.fns, decode_loop_mesh_axes_transpose
  if fns.fprop is not None:
    columns_from_right = jnp.arange(search.prefix_ids.shape[1])[::-1]
    is_padding = columns_from_right >= search.prefix_lengths[:, jnp.newaxis]
    fns.fprop(model, search.prefix_ids, is_padding.astype(jnp.float32))
  model = mesh_transpose.maybe_reshard_mdl_for_decode(
    model, axes, model_var_pspecs, fns.transform
  )
  with mesh_transpose.maybe_decode_mesh_transpose(model, axes):
    search.prepare_states(model)
    result = search.result(search.run_loop(model))
    if search.hparams.process_result_fn is not None:
      result = search.hparams.process_result_fn(model, result)
  return result


def beam_search(
  model: Any,
  extend_step_fn: model_fns.ExtendStepFn | model_fns.ExpandedExtendStepFn,
  fprop_fn: model_fns.FPropFn | None,
  transform_state_fn: model_fns.TransformStateFn,
  prefix_ids: Int[Array, 'B P'],
  prefix_paddings: Float[Array, 'B P'],
  beam_search_hparams: BeamSearchHParams,
  compute_logprobs_fn: ComputeLogprobsFn = default_compute_logprobs_fn,
  decode_loop_mesh_axes_transpose: dict[str, str] | None = None,
  model_var_pspecs: Any = None,
  process_result_fn: Callable[[Any, NestedMap], NestedMap] | None = None,
  lazy_broadcast_prefix_fn: model_fns.LazyBroadcastPrefixFn | None = None,
) -> NestedMap:
  """Returns the best continuations of each prompt; see `run_search`.

  Args:
    model: bound, with a mutable DECODE_CACHE.
    extend_step_fn: runs one decode step of the model.
    fprop_fn: prefills the prompts.
    transform_state_fn: transforms the model's decode states.
    prefix_ids: right-aligned prompts.
    prefix_paddings: 1 in the padding before them.
    beam_search_hparams: the settings of the search.
    compute_logprobs_fn: maps logits to log-probabilities.
    decode_loop_mesh_axes_transpose: mesh axes inside the loop.
    model_var_pspecs: PartitionSpecs of the model's variables.
    process_result_fn: fn(model, result) -> result.
    lazy_broadcast_prefix_fn: shares the prompts' decode states among
      hypotheses; None: each has a copy.
  """
  hparams = beam_search_hparams.clone()
  hparams.process_result_fn = process_result_fn
  search = BeamSearch(
    fns=model_fns.ModelFns(
      extend_step=model_fns.coerce_to_expanded_extend_step_fn(extend_step_fn),
      transform_state=transform_state_fn,
      lazy_broadcast_prefix=lazy_broadcast_prefix_fn,
      fprop=fprop_fn,
    ),
    hparams=hparams,
    prefix_ids=prefix_ids,
    prefix_lengths=py_utils.sequence_lengths(prefix_paddings),
    compute_logprobs=compute_logprobs_fn,
  )
  return run_search(
    model,
    search,
    decode_loop_mesh_axes_transpose=decode_loop_mesh_axes_transpose,
    model_var_pspecs=model_var_pspecs,
  )


def beam_search_after_prefix_fprop(
  model: Any,
  extend_step_fn: model_fns.ExtendStepFn | model_fns.ExpandedExtendStepFn,
  transform_state_fn: model_fns.TransformStateFn,
  prefix_ids: Int[Array, 'B P'],
  prefix_paddings: Float[Array, 'B P'],
  beam_search_hparams: BeamSearchHParams,
  compute_logprobs_fn: ComputeLogprobsFn = default_compute_logprobs_fn,
  lazy_broadcast_prefix_fn: model_fns.LazyBroadcastPrefixFn | None = None,
) -> NestedMap:
  """Returns what `beam_search` does, of a model that is prefilled already.

  Args:
    model: bound, with a mutable DECODE_CACHE.
    extend_step_fn: see `beam_search`, as all arguments below.
    transform_state_fn: transforms decode states.
    prefix_ids: right-aligned prompts.
    prefix_paddings: 1 in the padding before them.
    beam_search_hparams: the settings of the search.
    compute_logprobs_fn: maps logits to log-probabilities.
    lazy_broadcast_prefix_fn: shares the prompts' decode states.
  """
  return beam_search(
    model,
    extend_step_fn,
    None,
    transform_state_fn,
    prefix_ids,
    prefix_paddings,
    beam_search_hparams,
    compute_logprobs_fn,
    lazy_broadcast_prefix_fn=lazy_broadcast_prefix_fn,
  )


def update_global_beam(
  end_hyps: GlobalBeam, cur_hyps: GlobalBeam
) -> GlobalBeam:
  """Returns the K best of old and new finished hypotheses."""
  ids, lengths, scores, logprobs = hypotheses.keep_best(end_hyps, cur_hyps)
  return ids, lengths, scores, logprobs


def shuffle_state(
  x: Shaped[Array, '...'],
  hyp_id: Int[Array, 'B K'],
  use_one_hot_matmul: bool = False,
) -> Shaped[Array, '...']:
  """Returns x[b, hyp_id[b, k]], or x itself if its rank is below 2."""
  if not isinstance(x, jax.Array) or x.ndim < 2:
    return x
  if use_one_hot_matmul:
    one_hot = jax.nn.one_hot(hyp_id, hyp_id.shape[1], dtype=x.dtype)
    return jnp.einsum('bk...,bjk->bj...', x, one_hot, precision='highest')
  return hypotheses.gather_hypotheses(x, hyp_id)


def broadcast_beam_dim(
  x: Shaped[Array, '...'], beam_dim: int, beam_size: int
) -> Shaped[Array, '...']:
  """Returns x repeated `beam_size` times along a new axis `beam_dim`."""
  return jnp.repeat(jnp.expand_dims(x, beam_dim), beam_size, axis=beam_dim)
