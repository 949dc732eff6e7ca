# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Rotary positions for texts longer than those of training."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers import embedding_softmax as es
from tests.praxis.layers import running


def _scaled(scaling, size=8):
  config = es.RotaryPositionalEmbedding.config(
    name='rotary', embedding_dims=size, scaling_tpl=scaling
  )
  return config.Instantiate()


def test_linear_scaling_divides_positions():
  x = running.normal(2, 5, 3, 8)
  scaled = _scaled(es.LinearRotaryScaling.config(factor=2.0))
  plain = es.RotaryPositionalEmbedding.config(name='r', embedding_dims=8)
  positions = jnp.arange(5)[jnp.newaxis]
  got = scaled.apply({}, x, 2 * positions)
  want = plain.Instantiate().apply({}, x, positions)
  np.testing.assert_allclose(got, want, atol=1e-5)


def _llama3_angle(i, half, factor=8.0, low=1.0, high=4.0, length=8192):
  """As Meta published it: by the wavelength of a frequency."""
  frequency = 500_000 ** (-i / half)
  wavelength = 2 * math.pi / frequency
  if wavelength < length / high:
    return frequency
  if wavelength > length / low:
    return frequency / factor
  smooth = (length / wavelength - low) / (high - low)
  return (1 - smooth) * frequency / factor + smooth * frequency


# Equal ones are those of Llama 4 Scout.
@pytest.mark.parametrize('high', [4.0, 1.0])
def test_llama3_scaling_slows_slow_channels(high):
  half = 16
  scaling = es.Llama3RotaryScaling.config(high_freq_factor=high)
  scaled = _scaled(scaling, 2 * half)
  scaled = scaled.clone(max_timescale=500_000)
  want = np.array([_llama3_angle(i, half, high=high) for i in range(half)])
  # Of a unit in the first channel of each pair, at position 1.
  x = jnp.concatenate([jnp.ones(half), jnp.zeros(half)])[None, None]
  cos, sin = np.split(scaled.apply({}, x, jnp.ones((1, 1), int))[0, 0], 2)
  np.testing.assert_allclose(np.arctan2(sin, cos), want, rtol=1e-5, atol=1e-9)
  assert want[0] == 1.0 and want[-1] == 500_000 ** (-15 / 16) / 8


def _yarn_frequency(i, half, factor=4.0, length=4096, fast=32.0, slow=1.0):
  """As in section 3.2 of the paper: by the turns of rounded channels."""
  channel = lambda turns: (
    half * math.log(length / (turns * 2 * math.pi)) / math.log(10_000)
  )
  low, high = math.floor(channel(fast)), math.ceil(channel(slow))
  share = min(max((i - low) / (high - low), 0.0), 1.0)
  frequency = 10_000 ** (-i / half)
  return share * frequency / factor + (1 - share) * frequency


# Equal ones are those of Kimi K2.
@pytest.mark.parametrize('fast', [32.0, 1.0])
def test_yarn_scaling_slows_slow_channels_and_sharpens(fast):
  half = 16
  scaled = _scaled(es.YarnRotaryScaling.config(beta_fast=fast), 2 * half)
  want = np.array([_yarn_frequency(i, half, fast=fast) for i in range(half)])
  x = jnp.concatenate([jnp.ones(half), jnp.zeros(half)])[None, None]
  y = scaled.apply({}, x, jnp.ones((1, 1), int))[0, 0]
  cos, sin = np.split(y, 2)
  np.testing.assert_allclose(np.arctan2(sin, cos), want, rtol=1e-5, atol=1e-9)
  np.testing.assert_allclose(np.hypot(cos, sin), 1 + 0.1 * np.log(4), rtol=1e-6)
  assert want[0] == 1.0 and want[-1] == 10_000 ** (-15 / 16) / 4
  is_gradual = len(set(want * 10_000 ** (np.arange(half) / half))) > 4
  assert is_gradual == (fast == 32.0)


def test_proportional_scaling_rotates_the_fastest_pairs_of_the_whole_head():
  half, rotated = 16, 4
  config = es.ProportionalRotaryScaling.config(fraction=0.25, factor=8.0)
  scaled = _scaled(config, 2 * half)
  x = jnp.concatenate([jnp.ones(half), jnp.zeros(half)])[None, None]
  cos, sin = np.split(scaled.apply({}, x, jnp.ones((1, 1), int))[0, 0], 2)
  want = np.where(
    np.arange(half) < rotated, 10_000 ** (-np.arange(half) / half) / 8, 0.0
  )
  np.testing.assert_allclose(np.arctan2(sin, cos), want, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
  'scaling, message',
  [
    (es.LinearRotaryScaling.config(factor=0.0), 'factor must be positive'),
    (es.Llama3RotaryScaling.config(factor=-1.0), 'got -1.0'),
    (es.YarnRotaryScaling.config(factor=0.0), 'factor must be positive'),
    (
      es.ProportionalRotaryScaling.config(fraction=0.0),
      'fraction must be positive and at most 1, got 0.0',
    ),
    (
      es.ProportionalRotaryScaling.config(factor=0.0),
      'factor must be positive',
    ),
    (es.YarnRotaryScaling.config(beta_slow=33.0), 'at most beta_fast=32.0'),
    (
      es.Llama3RotaryScaling.config(low_freq_factor=5.0),
      'at most high_freq_factor=4.0, got 5.0',
    ),
  ],
)
def test_bad_scaling_is_refused(scaling, message):
  with pytest.raises(ValueError, match=message):
    _scaled(scaling).apply({}, jnp.zeros((1, 2, 8)))
