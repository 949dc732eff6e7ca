# SPDX-License-Identifier: Apache-2.0
"""SpecAugment: random time and frequency masks of spectrograms.

References: https://arxiv.org/abs/1904.08779, and with masks that scale with the
length https://arxiv.org/abs/1912.05533
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from praxis import base_layer, py_utils
from praxis.alias_names import module_getattr

__getattr__ = module_getattr(__name__)


class SpectrumAugmenter(base_layer.BaseLayer):
  """Sets random ranges of frames and of frequency bins to 0, in training."""

  # The largest width of a frequency mask, and number of masks.
  freq_mask_max_bins: int = 27
  freq_mask_count: int = 2
  # Whether the largest width of a time mask is time_mask_max_ratio of the
  # length, or time_mask_max_frames.
  use_dynamic_time_mask_max_frames: bool = True
  time_mask_max_frames: int = 40
  # Number of time masks; the largest number with time_masks_per_frame.
  time_mask_count: int = 10
  # The largest share of the frames that a mask covers.
  time_mask_max_ratio: float = 0.05
  # Number of time masks per frame; 0: time_mask_count masks.
  time_masks_per_frame: float = 0.0
  # Whether to augment in eval, too.
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
    if self.time_mask_max_ratio > 1.0:
      raise ValueError(
        'time_mask_max_ratio must be at most 1, all frames, got '
        f'{self.time_mask_max_ratio}'
      )

  def __call__(
    self, inputs: Float[Array, 'B T F'], paddings: Num[Array, 'B T']
  ) -> tuple[Float[Array, 'B T F'], Num[Array, 'B T']]:
    """Returns the masked spectrogram, and the paddings."""
    if self.do_eval and not self.augment_at_eval:
      return inputs, paddings
    batch, length, num_bins = inputs.shape
    if self._is_masking_time:
      num_frames = py_utils.sequence_lengths(paddings)
      is_dynamic = self.use_dynamic_time_mask_max_frames
      mask = self._random_mask(
        num_frames,
        length,
        self.time_mask_count,
        max_width=None if is_dynamic else self.time_mask_max_frames,
        max_ratio=self.time_mask_max_ratio,
        masks_per_position=self.time_masks_per_frame,
      )
      inputs = jnp.where(mask[:, :, None], 0, inputs)
    if self.freq_mask_max_bins and self.freq_mask_count:
      mask = self._random_mask(
        jnp.full([batch], num_bins),
        num_bins,
        self.freq_mask_count,
        max_width=self.freq_mask_max_bins,
      )
      inputs = jnp.where(mask[:, None, :], 0, inputs)
    return inputs, paddings

  @property
  def _is_masking_time(self) -> bool:
    if self.time_mask_max_ratio <= 0.0 or not self.time_mask_count:
      return False
    return (
      self.use_dynamic_time_mask_max_frames or self.time_mask_max_frames > 0
    )

  def _random_mask(
    self,
    lengths: Int[Array, ' B'],
    size: int,
    num_masks: int,
    *,
    max_width: int | None,
    max_ratio: float = 1.0,
    masks_per_position: float = 0.0,
  ) -> Bool[Array, 'B {size}']:
    """Returns the union of random ranges below `lengths`.

    Args:
      lengths: number of valid positions of each example.
      size: number of positions.
      num_masks: number of ranges to draw.
      max_width: the largest width; None: max_ratio of the length.
      max_ratio: the largest share of the length that a range covers.
      masks_per_position: number of ranges to use per valid position; 0: all.
    """
    shape = (len(lengths), num_masks)
    width_share = jax.random.uniform(self.next_prng_key(), shape)
    start_share = jax.random.uniform(self.next_prng_key(), shape)
    lengths = lengths[:, None]
    width_limit = lengths * max_ratio if max_width is None else max_width
    bound = jnp.maximum((max_ratio * lengths).astype(jnp.int32), 1)
    width = jnp.minimum((width_limit * width_share).astype(jnp.int32), bound)
    start = (start_share * (lengths - width + 1)).astype(jnp.int32)
    if masks_per_position > 0:
      is_used = jnp.arange(num_masks) < masks_per_position * lengths
      width = jnp.where(is_used, width, 0)
    position = jnp.arange(size)
    start, end = start[..., None], (start + width)[..., None]
    return jnp.any((position >= start) & (position < end), axis=1)
