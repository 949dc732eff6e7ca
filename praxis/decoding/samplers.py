# SPDX-License-Identifier: Apache-2.0
"""Draws the next token from logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_hyperparams, py_utils
from praxis.pytypes import PRNGKey


class BaseNextTokenSampler(base_hyperparams.FiddleBaseParameterizable):
  """Draws one token for each row of logits."""

  def __call__(
    self,
    logits: Float[Array, 'B V'],
    key: PRNGKey,
    temperature: Float[Array, ''] | float,
  ) -> Int[Array, 'B']:
    raise NotImplementedError(f'{type(self).__name__} defines no __call__')


class DefaultNextTokenSampler(BaseNextTokenSampler):
  """Draws from the top k, the top p of probability, or from both's overlap.

  References: The Curious Case of Neural Text Degeneration,
  https://arxiv.org/abs/1904.09751 (top p)
  """

  # How many of the most probable tokens remain; 0 for all.
  top_k: int = 40
  # The remaining tokens' least total probability, after top_k; None for all.
  top_p: float | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.top_k < 0:
      raise ValueError(f'top_k must be >= 0, got {self.top_k}; 0 keeps all')
    if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
      raise ValueError(f'top_p must be in (0, 1], got {self.top_p}')

  def __call__(
    self,
    logits: Float[Array, 'B V'],
    key: PRNGKey,
    temperature: Float[Array, ''] | float,
  ) -> Int[Array, 'B']:
    logits = logits.astype(jnp.float32)
    if self.top_k == 1:
      return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    if 0 < self.top_k < logits.shape[-1]:
      logits = top_k_mask_logits(logits, self.top_k)
    if self.top_p is not None:
      logits = top_p_mask_logits(logits, self.top_p)
    # Equal to drawing from softmax(logits / temperature), and defined at 0.
    noise = jax.random.gumbel(key, logits.shape, logits.dtype)
    noisy = logits + temperature * noise
    return jnp.argmax(noisy, axis=-1).astype(jnp.int32)


def top_k_mask_logits(
  logits: Float[Array, 'B V'], k: int
) -> Float[Array, 'B V']:
  """Hides all but the k highest logits of each row, and those equal to them."""
  lowest_kept = jax.lax.top_k(logits, k)[0][:, -1:]
  return jnp.where(logits < lowest_kept, _hidden(logits), logits)


def top_p_mask_logits(
  logits: Float[Array, 'B V'], p: float
) -> Float[Array, 'B V']:
  """Hides all but the fewest tokens whose probability is at least p."""
  ordered = jnp.sort(logits, axis=-1, descending=True)
  before = jnp.cumsum(jax.nn.softmax(ordered), axis=-1) - jax.nn.softmax(
    ordered
  )
  # The most probable token has nothing before it, so it always stays.
  kept = jnp.where(before < p, ordered, jnp.inf)
  lowest_kept = jnp.min(kept, axis=-1, keepdims=True)
  return jnp.where(logits < lowest_kept, _hidden(logits), logits)


def _hidden(logits: Array) -> Array:
  return py_utils.get_large_negative_number(logits.dtype)
