# SPDX-License-Identifier: Apache-2.0
"""Filters of next-token logits: top-k, top-p (nucleus) and epsilon."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import py_utils

# A probability for all rows or one for each.
TopP = float | Float[Array, '...']


def get_top_k(
  logits: Float[Array, 'B V'],
  top_k: int,
  per_example_top_k: Int[Array, ' B'] | None,
  top_k_recall_target: float = 1.0,
) -> tuple[Float[Array, 'B K'], Int[Array, 'B K']]:
  """Returns the top k logits in descending order, and their token ids.

  Args:
    logits: of all tokens.
    top_k: k; 0 returns all logits in the order of their ids.
    per_example_top_k: a smaller k for each row; its other logits are masked.
    top_k_recall_target: below 1, the expected recall of an approximate top k
      (TPU-KNN, https://arxiv.org/abs/2206.14286).

  Raises:
    ValueError: top_k_recall_target is not in (0, 1].
  """
  if not 0.0 < top_k_recall_target <= 1.0:
    raise ValueError(
      f'top_k_recall_target must be in (0, 1], got {top_k_recall_target}; 1 '
      'finds the exact top k'
    )
  vocab_size = logits.shape[-1]
  if not top_k:
    if per_example_top_k is not None:
      # Continuous batching has a k for each slot, mostly that of all tokens.
      logits = jax.lax.cond(
        jnp.any(per_example_top_k < vocab_size),
        lambda x, k: _mask_ranks(x, _ranks(x), k),
        lambda x, _: x,
        *(logits, per_example_top_k),
      )
    ids = jnp.arange(vocab_size, dtype=jnp.int32)
    return logits, jnp.broadcast_to(ids, logits.shape)
  top_k = min(top_k, vocab_size)
  if top_k_recall_target < 1.0:
    top_logits, ids = jax.lax.approx_max_k(
      logits, top_k, recall_target=top_k_recall_target
    )
  else:
    top_logits, ids = jax.lax.top_k(logits, top_k)
  if per_example_top_k is not None:
    rank = jnp.arange(top_k)[jnp.newaxis]
    top_logits = _mask_ranks(top_logits, rank, per_example_top_k)
  return top_logits, ids


def top_p_mask_logits(
  logits: Float[Array, 'B V'],
  p: TopP,
  logits_sorted_in_descending_order: bool = False,
  logits_sum: Float[Array, 'B 1'] | None = None,
) -> Float[Array, 'B V']:
  """Masks all but the smallest set of top tokens with total probability >= p.

  If the top tokens have a total of exactly p, sorted logits keep one more.

  References: The Curious Case of Neural Text Degeneration (nucleus sampling),
  https://arxiv.org/abs/1904.09751

  Args:
    logits: of the candidate tokens.
    p: for all rows, or one for each, [B] or [B, 1].
    logits_sorted_in_descending_order: skips sorting.
    logits_sum: divides the logits instead of a softmax; see `sum_of_logits`.
  """
  if not isinstance(p, jax.Array) and p >= 1.0:
    return logits
  p = jnp.asarray(p, jnp.float32).reshape(-1, 1)
  is_descending = logits_sorted_in_descending_order
  ordered = logits if is_descending else jnp.sort(logits, axis=-1)
  probs = ordered.astype(jnp.float32)
  if logits_sum is None:
    probs = jax.nn.softmax(probs, axis=-1)
  else:
    probs /= logits_sum
  # In ascending order, the small probabilities are summed first.
  limit = p if is_descending else 1.0 - p
  num_below = jnp.sum(
    jnp.cumsum(probs, axis=-1) <= limit, axis=-1, keepdims=True
  )
  # Rounding must not mask any token of a row with p >= 1.
  num_below = jnp.where(p >= 1.0, is_descending * logits.shape[-1], num_below)
  threshold = jnp.take_along_axis(ordered, num_below, axis=-1, mode='clip')
  return jnp.where(logits < threshold, _mask_value(logits), logits)


def replace_logits(
  logits: Float[Array, '... V'],
  tokens: Sequence[int] | Array | int,
  value: Array | float,
) -> Float[Array, '... V']:
  """Returns `logits` with `value` in place of those of `tokens`.

  XLA sets a single token in each shard of the vocabulary if `.at[]` sets it
  (docs/known_issues.md).
  """
  vocabulary = jnp.arange(logits.shape[-1])
  is_given = jnp.isin(vocabulary, jnp.asarray(tokens))
  return jnp.where(is_given, jnp.asarray(value, logits.dtype), logits)


def sum_of_logits(logits: Float[Array, 'B V']) -> Float[Array, 'B 1']:
  """Returns the normalizer of `global_normalize`, the sum of the logits.

  With it, top_p is a share of the logits: they are taken as nonnegative
  weights, not as log-probabilities.
  """
  return jnp.sum(logits.astype(jnp.float32), axis=-1, keepdims=True)


def epsilon_mask_logits(
  logits: Float[Array, 'B V'], epsilon: float
) -> Float[Array, 'B V']:
  """Masks tokens of a probability below epsilon, except the most probable."""
  if epsilon <= 0:
    return logits
  probs = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
  max_prob = jnp.max(probs, axis=-1, keepdims=True)
  is_masked = probs < jnp.minimum(epsilon, max_prob)
  return jnp.where(is_masked, _mask_value(logits), logits)


def _ranks(logits: Float[Array, 'B V']) -> Int[Array, 'B V']:
  """Returns 0 for the largest logit of a row, 1 for the second, and so on."""
  return jnp.argsort(jnp.argsort(logits, axis=-1, descending=True), axis=-1)


def _mask_ranks(
  logits: Float[Array, 'B K'],
  rank: Int[Array, '#B K'],
  top_k: Int[Array, ' B'],
) -> Float[Array, 'B K']:
  """Masks the logits of each row whose rank is not below its top_k."""
  is_in_top_k = rank < top_k.astype(jnp.int32)[:, jnp.newaxis]
  return jnp.where(is_in_top_k, logits, _mask_value(logits))


def _mask_value(logits: Array) -> Array:
  return py_utils.get_large_negative_number(logits.dtype)
