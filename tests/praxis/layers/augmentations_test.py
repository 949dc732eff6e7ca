# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Random changes of inputs: what they may do, how often, and to what."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import augmentations, spectrum_augmenter
from tests.praxis.layers.running import build, normal, run


def _run(layer, *args, seed=0, **kwargs):
  rngs = {base_layer.RANDOM: jax.random.key(seed)}
  return run(layer, {}, *args, rngs=rngs, **kwargs)


def _layer(cls, **fields):
  return cls.config(name='layer', **fields).Instantiate()


def test_tokens_are_masked_replaced_and_kept():
  layer = _layer(
    augmentations.MaskedLmDataAugmenter,
    vocab_size=100,
    mask_prob=0.3,
    random_prob=0.2,
    same_prob=0.1,
    mask_token_id=99,
  )
  ids = jnp.full([100, 100], 7)
  paddings = jnp.zeros([100, 100]).at[:, 80:].set(1.0)
  got, chosen = _run(layer, ids, paddings)
  assert got.dtype == ids.dtype and chosen.dtype == jnp.float32
  np.testing.assert_array_equal(got[:, 80:], 7)
  np.testing.assert_array_equal(chosen[:, 80:], 0)
  got, chosen = np.asarray(got[:, :80]), np.asarray(chosen[:, :80]) == 1
  assert (got[~chosen] == 7).all()
  # Of 8000: six deviations are 0.034 at most.
  share = lambda x: np.mean(x)
  np.testing.assert_allclose(share(chosen), 0.6, atol=0.034)
  np.testing.assert_allclose(share(got == 99), 0.3 + 0.002, atol=0.034)
  np.testing.assert_allclose(share(chosen & (got == 7)), 0.102, atol=0.034)
  others = got[chosen & (got != 7) & (got != 99)]
  assert others.min() < 5 and others.max() > 94


def test_only_masks():
  layer = _layer(
    augmentations.MaskedLmDataAugmenter,
    vocab_size=9,
    mask_prob=0.5,
    random_prob=0.0,
    same_prob=0.0,
    mask_token_id=8,
  )
  ids = jnp.zeros([4, 50], jnp.int32)
  got, chosen = _run(layer, ids, jnp.zeros([4, 50]))
  np.testing.assert_array_equal(got, 8 * np.asarray(chosen))
  assert 50 < chosen.sum() < 150


def test_signals_move_with_their_paddings():
  layer = _layer(
    augmentations.TemporalShifting, shift_range_ms=2.0, sample_rate=1000.0
  )
  signals = jnp.tile(jnp.arange(1.0, 7.0)[None, :, None], [40, 1, 2])
  paddings = jnp.zeros([40, 6]).at[:, 5].set(1.0)
  got, out_paddings = _run(layer, signals, paddings)
  got, out_paddings = np.asarray(got), np.asarray(out_paddings)
  seen = set()
  for signal, padding in zip(got, out_paddings, strict=True):
    np.testing.assert_array_equal(signal[:, 0], signal[:, 1])
    # 3 is the third, and stays inside whatever the shift.
    shift = int(np.argmax(signal[:, 0] == 3)) - 2
    seen.add(shift)
    for at in range(6):
      source = at - shift
      inside = 0 <= source < 6
      assert signal[at, 0] == (source + 1 if inside else 0)
      assert padding[at] == (float(source == 5) if inside else 1)
  assert seen == {-2, -1, 0, 1, 2}
  plain, none = _run(layer, signals, do_eval=True)
  np.testing.assert_array_equal(plain, signals)
  assert none is None
  assert _run(layer, signals)[1] is None


def _stretches(hidden):
  """The lengths of the runs that are hidden."""
  edges = np.flatnonzero(np.diff(np.pad(hidden.astype(int), 1)))
  return edges[1::2] - edges[::2]


def test_spectrogram_masks():
  layer = _layer(
    spectrum_augmenter.SpectrumAugmenter,
    freq_mask_max_bins=3,
    freq_mask_count=1,
    time_mask_count=1,
    time_mask_max_ratio=0.5,
  )
  x = jnp.ones([200, 12, 9], jnp.bfloat16)
  paddings = jnp.zeros([200, 12]).at[100:, 6:].set(1.0)
  got, same = _run(layer, x, paddings)
  assert got.dtype == jnp.bfloat16
  np.testing.assert_array_equal(same, paddings)
  got = np.asarray(got) == 0
  times, bins = got.all(2), got.all(1)
  np.testing.assert_array_equal(got, times[:, :, None] | bins[:, None])
  assert not times[100:, 6:].any()
  long, short = (
    {n for row in rows for n in _stretches(row)}
    for rows in (times[:100], times[100:])
  )
  assert long == {1, 2, 3, 4, 5} and short == {1, 2}
  assert {n for row in bins for n in _stretches(row)} == {1, 2}
  assert bins.any(0).all() and times[:100].any(0).all()


def test_number_of_masks_follows_the_length():
  layer = _layer(
    spectrum_augmenter.SpectrumAugmenter,
    freq_mask_count=0,
    use_dynamic_time_mask_max_frames=False,
    time_mask_max_frames=2,
    time_mask_max_ratio=1.0,
    time_masks_per_frame=0.05,
  )
  # Masks of at most one frame: one for 20 frames, two for 40.
  paddings = jnp.zeros([100, 40]).at[50:, 20:].set(1.0)
  got, _ = _run(layer, jnp.ones([100, 40, 1]), paddings)
  count = np.sum(np.asarray(got[..., 0]) == 0, axis=1)
  assert set(count[50:]) == {0, 1} and set(count[:50]) == {0, 1, 2}


def test_no_masks():
  x, paddings = normal(2, 8, 4), jnp.zeros([2, 8])
  same = lambda layer, **kwargs: np.testing.assert_array_equal(
    _run(layer, x, paddings, **kwargs)[0], x
  )
  cls = spectrum_augmenter.SpectrumAugmenter
  same(_layer(cls), do_eval=True)
  same(_layer(cls, freq_mask_max_bins=0, time_mask_count=0))
  same(_layer(cls, freq_mask_count=0, time_mask_max_ratio=0.0))
  same(
    _layer(
      cls,
      freq_mask_count=0,
      time_mask_max_frames=0,
      use_dynamic_time_mask_max_frames=False,
    )
  )
  at_eval = _layer(cls, augment_at_eval=True, freq_mask_max_bins=4)
  assert (_run(at_eval, x, paddings, do_eval=True)[0] != x).any()


@pytest.mark.parametrize(
  'cfg, message',
  [
    (
      augmentations.MaskedLmDataAugmenter.config(vocab_size=5),
      r'mask_token_id must be in \[0, vocab_size\), got -1',
    ),
    (
      augmentations.MaskedLmDataAugmenter.config(
        vocab_size=5, mask_token_id=4, mask_prob=1.0
      ),
      r'their sum be in \(0, 1\)',
    ),
    (
      augmentations.TemporalShifting.config(shift_range_ms=-1.0),
      'shift_range_ms must not be negative',
    ),
    (
      augmentations.TemporalShifting.config(shift_range_ms=1.0),
      'shift_range_ms must be below 0.25',
    ),
    (
      spectrum_augmenter.SpectrumAugmenter.config(time_mask_count=-1),
      'time_mask_count must not be negative',
    ),
    (
      spectrum_augmenter.SpectrumAugmenter.config(time_mask_max_ratio=5.0),
      'time_mask_max_ratio must be at most 1',
    ),
  ],
)
def test_bad_settings(cfg, message):
  is_text = cfg.cls is augmentations.MaskedLmDataAugmenter
  inputs = jnp.zeros([2, 4], jnp.int32) if is_text else normal(2, 4, 3)
  with pytest.raises(ValueError, match=message):
    build(cfg, inputs, jnp.zeros([2, 4]))
