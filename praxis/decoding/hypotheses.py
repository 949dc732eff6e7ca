# SPDX-License-Identifier: Apache-2.0
"""What beam searches share: scores, the best continuations, the best results.

Shapes: B prompts, K hypotheses (the beam), V tokens, T columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, Shaped

from praxis.decoding import loop
from praxis.decoding.hparams import BeamSearchHParams

# The score of what is not (yet) there.
NO_SCORE = -1e9
# The log-probability of an end that would come too soon.
_TOO_SOON = -1e20


def length_norm(
  t: Num[Array, '*B'], length_norm_alpha: float
) -> Float[Array, '*B']:
  """Returns ((t + 5) / 5) ** alpha, what log-probabilities are divided by.

  References: Google's Neural Machine Translation System,
  https://arxiv.org/abs/1609.08144
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


def two_stage_topk(
  logits: Float[Array, '*B V'],
  hyp_scores: Float[Array, 'B K'],
  terminal_ids: Sequence[int],
  tokens_per_beam: int | None = None,
) -> tuple[
  Float[Array, 'B M'], Int[Array, 'B M'], Float[Array, 'B K'], Int[Array, 'B K']
]:
  """Returns the best continuations: of each hypothesis, then of all.

  Args:
    logits: log-probabilities, [B, K, V] or [B * K, V].
    hyp_scores: added to those of each hypothesis.
    terminal_ids: tokens that are not continued, and so get a very low score.
    tokens_per_beam: how many tokens of each hypothesis are looked at; K if
      None.

  Returns:
    Scores and tokens of the M = K * tokens_per_beam continuations, and scores
    and indices (among those) of the K best.
  """
  batch, beam = hyp_scores.shape
  count = min(tokens_per_beam or beam, logits.shape[-1])
  best, ids = jax.lax.top_k(logits.reshape(batch, beam, -1), count)
  scores = best + hyp_scores[:, :, jnp.newaxis]
  for terminal_id in terminal_ids:
    scores += jnp.where(ids == terminal_id, NO_SCORE, 0.0)
  scores, ids = scores.reshape(batch, -1), ids.reshape(batch, -1)
  return scores, ids, *jax.lax.top_k(scores, beam)


def keep_best(
  kept: tuple[Array, ...], new: tuple[Array, ...]
) -> tuple[Array, ...]:
  """Returns the best of old and new hypotheses, as many as there were.

  Both are tuples of tensors [B, K, ...], the third of which is the score.
  """
  count = kept[0].shape[1]
  joined = [
    jnp.concatenate([a, b.astype(a.dtype)], axis=1)
    for a, b in zip(kept, new, strict=True)
  ]
  _, order = jax.lax.top_k(joined[2], count)
  return tuple(take_hypotheses(x, order) for x in joined)


def take_hypotheses(
  x: Shaped[Array, 'B M *D'], index: Int[Array, 'B K']
) -> Shaped[Array, 'B K *D']:
  """Returns x[b, index[b, k]]."""
  return jax.vmap(lambda row, i: row[i])(x, index)


def first_scores(batch: int, beam: int) -> Float[Array, 'B K']:
  """Returns the scores to start with: the others are copies of the first."""
  scores = jnp.arange(beam, dtype=jnp.float32) * NO_SCORE
  return jnp.broadcast_to(scores, (batch, beam))


@dataclasses.dataclass(frozen=True)
class Expansion:
  """What one step makes of the K hypotheses of each prompt."""

  # If they end here: the normalised score, the token and its log-probability.
  end_scores: Float[Array, 'B K']
  end_ids: Int[Array, 'B K']
  end_logprobs: Float[Array, 'B K']
  # The best that go on: which one they come of, the token, its
  # log-probability and the new score.
  parents: Int[Array, 'B K']
  ids: Int[Array, 'B K']
  logprobs: Float[Array, 'B K']
  scores: Float[Array, 'B K']


def expand(
  logprobs: Float[Array, 'B K V'],
  scores: Float[Array, 'B K'],
  length: Int[Array, ''],
  hparams: BeamSearchHParams,
) -> Expansion:
  """Returns what becomes of hypotheses with their token number `length`."""
  terminals = loop.as_list(hparams.eos_id)
  if hparams.min_decode_steps > 0:
    too_soon = length <= hparams.min_decode_steps
    without = logprobs.at[:, :, jnp.asarray(terminals)].set(_TOO_SOON)
    logprobs = jnp.where(too_soon, without, logprobs)
  ends = logprobs[:, :, jnp.asarray(terminals)]
  which = jnp.argmax(ends, axis=-1)
  end_logprobs = jnp.max(ends, axis=-1)
  norm = length_norm(length, hparams.length_norm_alpha)
  _, ids, best, chosen = two_stage_topk(
    logprobs, scores, terminals, hparams.tokens_per_beam
  )
  parents = chosen // (ids.shape[1] // scores.shape[1])
  new_ids = gather_output_id(ids, chosen)
  return Expansion(
    end_scores=jnp.maximum(scores + end_logprobs, NO_SCORE) / norm,
    end_ids=jnp.asarray(terminals, jnp.int32)[which],
    end_logprobs=end_logprobs,
    parents=parents,
    ids=new_ids,
    logprobs=gather_logprobs(logprobs, parents, new_ids),
    scores=best,
  )


def is_decided(
  live_scores: Float[Array, 'B K'],
  end_scores: Float[Array, 'B K'],
  max_steps: int,
  hparams: BeamSearchHParams,
) -> Any:
  """Returns for which prompts no live hypothesis can become a result.

  Log-probabilities only fall; the longest text divides them by the most.
  """
  alpha = hparams.length_norm_alpha
  largest = length_norm(jnp.asarray(max_steps if alpha > 0 else 1), alpha)
  can_reach = jnp.max(live_scores, axis=1) / largest
  return can_reach <= jnp.min(end_scores, axis=1)
