# SPDX-License-Identifier: Apache-2.0
"""SpecAugment: random masks over a spectrogram.

References: https://arxiv.org/abs/1904.08779, https://arxiv.org/abs/1912.05533
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from praxis import base_layer


class SpectrumAugmenter(base_layer.BaseLayer):
  """Sets random stretches of frames and of frequencies to 0, in training."""

  # How many frequencies a mask hides at most, and how many masks there are.
  freq_mask_max_bins: int = 27
  freq_mask_count: int = 2
  # Whether the most frames a mask hides are time_mask_max_ratio of the length,
  # instead of time_mask_max_frames.
  use_dynamic_time_mask_max_frames: bool = True
  time_mask_max_frames: int = 40
  # How many masks over time there are (at most, with time_masks_per_frame).
  time_mask_count: int = 10
  # The share of the frames that a mask may hide.
  time_mask_max_ratio: float = 0.05
  # How many masks there are for each frame, if positive.
  time_masks_per_frame: float = 0.0
  # Whether eval hides, too.
  augment_at_eval: bool = False

  def setup(self) -> None:
    for name in (
      'freq_mask_max_bins',
      'freq_mask_count',
      'time_mask_max_frames',
      'time_mask_count',
      'time_masks_per_frame',
    ):
      if getattr(self, name) < 0:
        raise ValueError(
          f'{name} must not be negative, got {getattr(self, name)}'
        )

  def __call__(
    self, inputs: Float[Array, 'B T F'], paddings: Num[Array, 'B T']
  ) -> tuple[Float[Array, 'B T F'], Num[Array, 'B T']]:
    """Returns the spectrogram with its masks, and the paddings."""
    if self.do_eval and not self.augment_at_eval:
      return inputs, paddings
    batch, length, bins = inputs.shape
    if self._is_masking_time:
      frames = jnp.sum(1 - paddings, axis=1).astype(jnp.int32)
      fixed = not self.use_dynamic_time_mask_max_frames
      hidden = self._hidden(
        frames,
        length,
        self.time_mask_count,
        longest=self.time_mask_max_frames if fixed else None,
        max_ratio=self.time_mask_max_ratio,
        per_place=self.time_masks_per_frame,
      )
      inputs = jnp.where(hidden[:, :, None], 0, inputs)
    if self.freq_mask_max_bins and self.freq_mask_count:
      hidden = self._hidden(
        jnp.full([batch], bins),
        bins,
        self.freq_mask_count,
        longest=self.freq_mask_max_bins,
      )
      inputs = jnp.where(hidden[:, None, :], 0, inputs)
    return inputs, paddings

  @property
  def _is_masking_time(self) -> bool:
    if self.time_mask_max_ratio <= 0.0 or not self.time_mask_count:
      return False
    return (
      self.use_dynamic_time_mask_max_frames or self.time_mask_max_frames > 0
    )

  def _hidden(
    self,
    lengths: Int[Array, 'B'],
    size: int,
    count: int,
    *,
    longest: int | None,
    max_ratio: float = 1.0,
    per_place: float = 0.0,
  ) -> Bool[Array, 'B {size}']:
    """Returns which places are hidden, below their `lengths` only.

    Args:
      lengths: how many places there are.
      size: how many there are at most.
      count: how many masks to draw.
      longest: how much a mask hides at most; None: what max_ratio allows.
      max_ratio: the share of the length that a mask may hide.
      per_place: how many of the masks to use for each place; 0: all.
    """
    shape = (len(lengths), count)
    share = jax.random.uniform(self.next_prng_key(), shape)
    at = jax.random.uniform(self.next_prng_key(), shape)
    lengths = lengths[:, None]
    most = lengths * max_ratio if longest is None else longest
    bound = jnp.maximum((max_ratio * lengths).astype(jnp.int32), 1)
    width = jnp.minimum((most * share).astype(jnp.int32), bound)
    start = (at * (lengths - width + 1)).astype(jnp.int32)
    if per_place > 0:
      used = jnp.arange(count) < per_place * lengths
      width = jnp.where(used, width, 0)
    places = jnp.arange(size)
    start, end = start[..., None], (start + width)[..., None]
    return jnp.any((places >= start) & (places < end), axis=1)
