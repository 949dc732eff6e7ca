# SPDX-License-Identifier: Apache-2.0
"""Random changes of inputs while training."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from praxis import base_layer


class MaskedLmDataAugmenter(base_layer.BaseLayer):
  """Replaces tokens by a mask, by random ones, or by themselves.

  References: BERT, https://arxiv.org/abs/1810.04805
  """

  # Random tokens are below this.
  vocab_size: int = 0
  # The probabilities that a token becomes the mask, a random one, or itself;
  # the model is asked for the token in each case.
  mask_prob: float = 0.12
  random_prob: float = 0.015
  same_prob: float = 0.015
  # The mask.
  mask_token_id: int = -1

  def setup(self) -> None:
    if not 0 <= self.mask_token_id < self.vocab_size:
      raise ValueError(
        f'mask_token_id must be in [0, vocab_size), got {self.mask_token_id} '
        f'with vocab_size {self.vocab_size}'
      )
    probs = (self.mask_prob, self.random_prob, self.same_prob)
    if min(probs) < 0 or not 0 < sum(probs) < 1:
      raise ValueError(
        'mask_prob, random_prob and same_prob must not be negative and their '
        f'sum be in (0, 1), got {probs}'
      )

  def __call__(
    self, inputs: Int[Array, 'B T'], paddings: Num[Array, 'B T']
  ) -> tuple[Int[Array, 'B T'], Float[Array, 'B T']]:
    """Returns the tokens, and 1 where a token is to be predicted."""
    other = self.random_prob + self.same_prob
    total = self.mask_prob + other
    chosen = self._happens(total, inputs) & (paddings == 0)
    masked = chosen & self._happens(self.mask_prob / total, inputs)
    share = self.random_prob / other if other else 0.0
    random = chosen & self._happens(share, inputs)
    tokens = jax.random.randint(
      self.next_prng_key(), inputs.shape, 0, self.vocab_size, inputs.dtype
    )
    mask = jnp.asarray(self.mask_token_id, inputs.dtype)
    augmented = jnp.where(masked, mask, jnp.where(random, tokens, inputs))
    return augmented, chosen.astype(self.fprop_dtype)

  def _happens(
    self, probability: float, like: Int[Array, 'B T']
  ) -> Bool[Array, 'B T']:
    drawn = jax.random.uniform(self.next_prng_key(), like.shape)
    return drawn < probability


class TemporalShifting(base_layer.BaseLayer):
  """Moves each signal back or forth in time at random, in training."""

  # By how many milliseconds at most.
  shift_range_ms: float = 0.0
  # Samples a second.
  sample_rate: float = 16000.0
  # Which dimension is time.
  axis: int = 1

  def setup(self) -> None:
    if self.shift_range_ms < 0 or self.axis < 1:
      raise ValueError(
        'shift_range_ms must not be negative and axis be at least 1, got '
        f'{self.shift_range_ms} and {self.axis}'
      )

  def __call__(
    self,
    features: Float[Array, 'B *rest'],
    paddings: Num[Array, 'B ...'] | None = None,
  ) -> tuple[Float[Array, 'B *rest'], Num[Array, 'B ...'] | None]:
    """Returns signals and paddings; what comes in is 0, and padding."""
    if self.do_eval or self.shift_range_ms == 0.0:
      return features, paddings
    reach = round(self.sample_rate * self.shift_range_ms / 1000.0)
    length = features.shape[self.axis]
    if reach >= length:
      raise ValueError(
        f'shift_range_ms must be below {1000.0 * length / self.sample_rate}, '
        f'the length of the signal, got {self.shift_range_ms}'
      )
    shifts = jax.random.randint(
      self.next_prng_key(), features.shape[:1], -reach, reach + 1
    )
    shifted = self._shift(features, shifts, reach, 0.0)
    if paddings is None:
      return shifted, None
    return shifted, self._shift(paddings, shifts, reach, 1.0)

  def _shift(
    self,
    signals: Num[Array, 'B *rest'],
    shifts: Int[Array, 'B'],
    reach: int,
    fill: float,
  ) -> Num[Array, 'B *rest']:
    """Returns each signal from `shifts` on; slices are cheap, gathers not."""
    widths = [(0, 0)] * signals.ndim
    widths[self.axis] = (reach, reach)
    padded = jnp.pad(signals, widths, constant_values=fill)
    cut = lambda signal, shift: jax.lax.dynamic_slice_in_dim(
      signal, reach + shift, signals.shape[self.axis], self.axis - 1
    )
    return jax.vmap(cut)(padded, shifts)
