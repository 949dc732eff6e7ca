# SPDX-License-Identifier: Apache-2.0
"""Which tokens may be drawn: the top k, the top p, those above epsilon."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import py_utils

# A probability for all rows or one for each.
TopP = float | Float[Array, '...']


def get_top_k(
  logits: Float[Array, 'B V'],
  top_k: int,
  per_example_top_k: Int[Array, 'B'] | None,
  top_k_recall_target: float = 1.0,
) -> tuple[Float[Array, 'B K'], Int[Array, 'B K']]:
  """Returns the highest logits, the first one highest, and their tokens.

  Args:
    logits: of all tokens.
    top_k: how many of them, or all of them as they are if 0.
    per_example_top_k: beyond how many of its top_k a row hides the rest.
    top_k_recall_target: below 1, the share of them to be found by a search
      that accelerators do faster; see https://arxiv.org/abs/2206.14286.
  """
  if not 0.0 < top_k_recall_target <= 1.0:
    raise ValueError(
      f'top_k_recall_target must be in (0, 1], got {top_k_recall_target}; 1 '
      'finds the exact top k'
    )
  size = logits.shape[-1]
  if not top_k:
    ids = jnp.arange(size, dtype=jnp.int32)
    return logits, jnp.broadcast_to(ids, logits.shape)
  count = min(top_k, size)
  if top_k_recall_target < 1.0:
    top, ids = jax.lax.approx_max_k(
      logits, count, recall_target=top_k_recall_target
    )
  else:
    top, ids = jax.lax.top_k(logits, count)
  if per_example_top_k is not None:
    rank = jnp.arange(count)[jnp.newaxis]
    kept = rank < per_example_top_k.astype(jnp.int32)[:, jnp.newaxis]
    top = jnp.where(kept, top, _hidden(top))
  return top, ids


def top_p_mask_logits(
  logits: Float[Array, 'B V'],
  p: TopP,
  logits_sorted_in_descending_order: bool = False,
  logits_sum: Float[Array, 'B 1'] | None = None,
) -> Float[Array, 'B V']:
  """Hides all but the fewest tokens whose total probability reaches p.

  References: The Curious Case of Neural Text Degeneration,
  https://arxiv.org/abs/1904.09751

  Args:
    logits: of the tokens to choose from.
    p: for all rows, or one for each, [B] or [B, 1].
    logits_sorted_in_descending_order: whether sorting can be left out.
    logits_sum: logsumexp of more logits, over which probabilities are
      normalised instead of those given.
  """
  if not isinstance(p, jax.Array) and p >= 1.0:
    return logits
  p = jnp.asarray(p, jnp.float32).reshape(-1, 1)
  ordered = logits.astype(jnp.float32)
  if not logits_sorted_in_descending_order:
    ordered = jnp.sort(ordered, axis=-1, descending=True)
  if logits_sum is None:
    logits_sum = jax.nn.logsumexp(ordered, axis=-1, keepdims=True)
  probs = jnp.exp(ordered - logits_sum)
  before = jnp.cumsum(probs, axis=-1) - probs
  # The most probable token always stays; from p = 1 on, all of them do.
  is_first = jnp.arange(ordered.shape[-1]) == 0
  kept = jnp.where((before < p) | is_first | (p >= 1.0), ordered, jnp.inf)
  lowest = jnp.min(kept, axis=-1, keepdims=True).astype(logits.dtype)
  return jnp.where(logits < lowest, _hidden(logits), logits)


def epsilon_mask_logits(
  logits: Float[Array, 'B V'], epsilon: float
) -> Float[Array, 'B V']:
  """Hides tokens less probable than epsilon; never the most probable one."""
  if epsilon <= 0:
    return logits
  probs = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
  best = jnp.max(probs, axis=-1, keepdims=True)
  return jnp.where(probs < jnp.minimum(epsilon, best), _hidden(logits), logits)


def _hidden(logits: Array) -> Array:
  return py_utils.get_large_negative_number(logits.dtype)
