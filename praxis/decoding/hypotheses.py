# SPDX-License-Identifier: Apache-2.0
"""Hypotheses of a beam: scores, expansion and selection.

Shapes: B prompts, K hypotheses (the beam size), V tokens, T columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num, Shaped

from praxis.decoding import decode_loop, logit_filters, stop_sequences
from praxis.decoding.hparams import BeamSearchHParams

# The score of a hypothesis that does not exist.
NO_SCORE = -1e9
# The log-probability of an end-of-sequence token before min_decode_steps.
_EARLY_EOS_LOGPROB = -1e20


def length_norm(
  t: Num[Array, '*B'], length_norm_alpha: float
) -> Float[Array, '*B']:
  """Returns ((t + 5) / 5) ** alpha, the divisor of log-probabilities.

  Equation 14 of Google's Neural Machine Translation System divides by 6.

  References: https://arxiv.org/abs/1609.08144
  """
  return ((t.astype(jnp.float32) + 5.0) / 5.0) ** length_norm_alpha


def gather_output_id(
  long_output_ids: Int[Array, 'B M'], topk_indices: Int[Array, 'B K']
) -> Int[Array, 'B K']:
  """Returns long_output_ids[b, topk_indices[b, k]]."""
  return jnp.take_along_axis(long_output_ids, topk_indices, axis=1)


def gather_logprobs(
  logprobs: Float[Array, 'B K V'],
  hyp_ids: Int[Array, 'B J'],
  ids: Int[Array, 'B J'],
) -> Float[Array, 'B J']:
  """Returns logprobs[b, hyp_ids[b, j], ids[b, j]]."""
  return jax.vmap(lambda row, hyp, token: row[hyp, token])(
    logprobs, hyp_ids, ids
  )


def gather_hypotheses(
  x: Shaped[Array, 'B M *D'], hyp_ids: Int[Array, 'B K']
) -> Shaped[Array, 'B K *D']:
  """Returns x[b, hyp_ids[b, k]]."""
  return jax.vmap(lambda row, hyp: row[hyp])(x, hyp_ids)


def two_stage_topk(
  logits: Float[Array, '*B V'],
  hyp_scores: Float[Array, 'B K'],
  terminal_ids: Sequence[int],
  tokens_per_beam: int | None = None,
) -> tuple[
  Float[Array, 'B M'], Int[Array, 'B M'], Float[Array, 'B K'], Int[Array, 'B K']
]:
  """Returns the top continuations of each hypothesis, then of the whole beam.

  Args:
    logits: log-probabilities, [B, K, V] or [B * K, V].
    hyp_scores: the scores of the hypotheses, added to the log-probabilities.
    terminal_ids: end-of-sequence tokens; continuations by these are excluded by
      a score of about NO_SCORE.
    tokens_per_beam: number of continuations per hypothesis; None: K.

  Returns:
    Scores and tokens of the M = K * tokens_per_beam continuations, then scores
    and indices (into M) of the best K.
  """
  batch, beam = hyp_scores.shape
  num_tokens = min(tokens_per_beam or beam, logits.shape[-1])
  logprobs, ids = jax.lax.top_k(logits.reshape(batch, beam, -1), num_tokens)
  scores = logprobs + hyp_scores[:, :, jnp.newaxis]
  for terminal_id in terminal_ids:
    scores += jnp.where(ids == terminal_id, NO_SCORE, 0.0)
  scores, ids = scores.reshape(batch, -1), ids.reshape(batch, -1)
  return scores, ids, *jax.lax.top_k(scores, beam)


def keep_best(
  end_hyps: tuple[Array, ...], cur_hyps: tuple[Array, ...]
) -> tuple[Array, ...]:
  """Returns the K best of the finished and the newly finished hypotheses.

  Args:
    end_hyps: tensors [B, K, ...]; the third is the score.
    cur_hyps: the same of the new hypotheses.
  """
  beam = end_hyps[0].shape[1]
  candidates = [
    jnp.concatenate([end, cur.astype(end.dtype)], axis=1)
    for end, cur in zip(end_hyps, cur_hyps, strict=True)
  ]
  _, best = jax.lax.top_k(candidates[2], beam)
  return tuple(gather_hypotheses(x, best) for x in candidates)


def initial_scores(batch: int, beam: int) -> Float[Array, 'B K']:
  """Returns 0 for the first hypothesis and NO_SCORE for its copies."""
  scores = jnp.arange(beam, dtype=jnp.float32) * NO_SCORE
  return jnp.broadcast_to(scores, (batch, beam))


@dataclasses.dataclass(frozen=True)
class Expansion:
  """The hypotheses of one beam search step: finished and live ones."""

  # Each hypothesis finished by its best end-of-sequence token: the normalized
  # score, the token and its log-probability. A hypothesis that does not exist
  # has no token: 0, NO_LOGPROB.
  end_scores: Float[Array, 'B K']
  end_ids: Int[Array, 'B K']
  end_logprobs: Float[Array, 'B K']
  # The new live hypotheses: the index of the parent hypothesis, the token, its
  # log-probability and the score.
  parents: Int[Array, 'B K']
  ids: Int[Array, 'B K']
  logprobs: Float[Array, 'B K']
  scores: Float[Array, 'B K']


def expand(
  logprobs: Float[Array, 'B K V'],
  scores: Float[Array, 'B K'],
  num_decoded: Int[Array, ''],
  hparams: BeamSearchHParams,
) -> Expansion:
  """Returns the expansion of the beam by one token.

  With early_exit, hypotheses that end compete with the others for a place in
  the beam; without, they get a place only where there are no others.

  Args:
    logprobs: log-probabilities of the next token.
    scores: scores of the live hypotheses.
    num_decoded: number of decoded tokens, the next one included.
    hparams: the settings of the search.

  Raises:
    ValueError: an end-of-sequence token is not in the vocabulary.
  """
  terminal_ids = stop_sequences.as_list(hparams.eos_id)
  vocab_size = logprobs.shape[-1]
  is_token = [0 <= terminal_id < vocab_size for terminal_id in terminal_ids]
  if not is_token or not all(is_token):
    raise ValueError(
      f'eos_id must be one or several of the {vocab_size} tokens in a beam '
      f'search, got {hparams.eos_id}; without an end it has no results'
    )
  if hparams.min_decode_steps > 0:
    is_too_early = num_decoded <= hparams.min_decode_steps
    without_eos = logit_filters.replace_logits(
      logprobs, terminal_ids, _EARLY_EOS_LOGPROB
    )
    logprobs = jnp.where(is_too_early, without_eos, logprobs)
  eos_logprobs = logprobs[:, :, jnp.asarray(terminal_ids)]
  end_ids = jnp.asarray(terminal_ids, jnp.int32)[
    jnp.argmax(eos_logprobs, axis=-1)
  ]
  end_logprobs = jnp.max(eos_logprobs, axis=-1)
  exists = scores + end_logprobs > NO_SCORE
  norm = length_norm(num_decoded, hparams.length_norm_alpha)
  _, topk_ids, topk_scores, topk_indices = two_stage_topk(
    logprobs,
    scores,
    [] if hparams.early_exit else terminal_ids,
    hparams.tokens_per_beam,
  )
  parents = topk_indices // (topk_ids.shape[1] // scores.shape[1])
  ids = gather_output_id(topk_ids, topk_indices)
  return Expansion(
    end_scores=jnp.maximum(scores + end_logprobs, NO_SCORE) / norm,
    end_ids=jnp.where(exists, end_ids, 0),
    end_logprobs=jnp.where(exists, end_logprobs, decode_loop.NO_LOGPROB),
    parents=parents,
    ids=ids,
    logprobs=gather_logprobs(logprobs, parents, ids),
    scores=topk_scores,
  )


def update_done(
  done: Bool[Array, 'B K'],
  parents: Int[Array, 'B K'],
  ids: Int[Array, 'B K'],
  eos_id: int | Sequence[int],
) -> Bool[Array, 'B K']:
  """Returns which new hypotheses contain an end-of-sequence token.

  Args:
    done: the same of their parents.
    parents: the index of each parent.
    ids: the new tokens.
    eos_id: one or several end-of-sequence ids.
  """
  return gather_hypotheses(done, parents) | stop_sequences.has_any_eos(
    ids, eos_id
  )
