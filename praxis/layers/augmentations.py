# SPDX-License-Identifier: Apache-2.0
"""Random augmentations of inputs in training."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from praxis import base_layer
from praxis.alias_names import module_getattr

__getattr__ = module_getattr(__name__)


class MaskedLmDataAugmenter(base_layer.BaseLayer):
  """Masks tokens for masked language modeling.

  References: BERT, https://arxiv.org/abs/1810.04805
  """

  # The range of random tokens.
  vocab_size: int = 0
  # The probabilities that a token is to be predicted and is replaced by the
  # mask token, by a random token, or unchanged.
  mask_prob: float = 0.12
  random_prob: float = 0.015
  same_prob: float = 0.015
  # The id of the mask token.
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
    """Returns the tokens, and 1 at the positions to predict."""
    unmasked_prob = self.random_prob + self.same_prob
    total_prob = self.mask_prob + unmasked_prob
    is_target = self._bernoulli(total_prob, inputs.shape) & (paddings == 0)
    is_masked = is_target & self._bernoulli(
      self.mask_prob / total_prob, inputs.shape
    )
    random_share = self.random_prob / unmasked_prob if unmasked_prob else 0.0
    is_random = is_target & self._bernoulli(random_share, inputs.shape)
    random_ids = jax.random.randint(
      self.next_prng_key(), inputs.shape, 0, self.vocab_size, inputs.dtype
    )
    mask_id = jnp.asarray(self.mask_token_id, inputs.dtype)
    augmented = jnp.where(is_random, random_ids, inputs)
    augmented = jnp.where(is_masked, mask_id, augmented)
    return augmented, is_target.astype(self.fprop_dtype)

  def _bernoulli(
    self, probability: float, shape: tuple[int, ...]
  ) -> Bool[Array, 'B T']:
    """Returns a mask that is True with the probability."""
    return jax.random.uniform(self.next_prng_key(), shape) < probability


class TemporalShifting(base_layer.BaseLayer):
  """Shifts each signal in time at random, in training."""

  # The largest shift in either direction, in milliseconds.
  shift_range_ms: float = 0.0
  # Samples per second.
  sample_rate: float = 16000.0
  # The time dimension.
  axis: int = 1

  def setup(self) -> None:
    if self.shift_range_ms < 0 or self.axis < 1:
      raise ValueError(
        'shift_range_ms must not be negative and axis be at least 1, got '
        f'{self.shift_range_ms} and {self.axis}'
      )

  def __call__(
    self,
    features: Float[Array, ' B *rest'],
    paddings: Num[Array, 'B ...'] | None = None,
  ) -> tuple[Float[Array, ' B *rest'], Num[Array, 'B ...'] | None]:
    """Returns shifted signals and paddings; vacated samples are 0 and padding.

    Args:
      features: the signals.
      paddings: 1 at padding, with the same time dimension.

    Raises:
      ValueError: the largest shift is not below the length of the signals.
    """
    if self.do_eval or self.shift_range_ms == 0.0:
      return features, paddings
    max_shift = round(self.sample_rate * self.shift_range_ms / 1000.0)
    length = features.shape[self.axis]
    if max_shift >= length:
      raise ValueError(
        f'shift_range_ms must be below {1000.0 * length / self.sample_rate}, '
        f'the length of the signal, got {self.shift_range_ms}'
      )
    shifts = jax.random.randint(
      self.next_prng_key(), features.shape[:1], -max_shift, max_shift + 1
    )
    shifted = self._shift(features, shifts, max_shift, 0.0)
    if paddings is None:
      return shifted, None
    return shifted, self._shift(paddings, shifts, max_shift, 1.0)

  def _shift(
    self,
    signals: Num[Array, ' B *rest'],
    shifts: Int[Array, ' B'],
    max_shift: int,
    fill: float,
  ) -> Num[Array, ' B *rest']:
    """Returns each signal shifted left; slices are cheaper than gathers."""
    widths = [(0, 0)] * signals.ndim
    widths[self.axis] = (max_shift, max_shift)
    padded = jnp.pad(signals, widths, constant_values=fill)
    shift_signal = lambda signal, shift: jax.lax.dynamic_slice_in_dim(
      signal, max_shift + shift, signals.shape[self.axis], self.axis - 1
    )
    return jax.vmap(shift_signal)(padded, shifts)
